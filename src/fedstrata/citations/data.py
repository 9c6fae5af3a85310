"""Publications of data sets, partition laws and libraries."""

from fedstrata.citations.form import NEURIPS, icml, preprint, talk, work

DATA = (
    work(
        "alpaydin1998optical",
        "misc",
        "Alpaydin, Ethem and Kaynak, Cenk",
        "Optical Recognition of Handwritten Digits",
        1998,
        howpublished="UCI Machine Learning Repository",
        doi="10.24432/C50P49",
    ),
    work(
        "pedregosa2011scikit",
        "article",
        "Pedregosa, Fabian and Varoquaux, Gaël and Gramfort, Alexandre and Michel, Vincent and Thirion, Bertrand and"
        " Grisel, Olivier and Blondel, Mathieu and Prettenhofer, Peter and Weiss, Ron and Dubourg, Vincent and"
        " Vanderplas, Jake and Passos, Alexandre and Cournapeau, David and Brucher, Matthieu and Perrot, Matthieu and"
        " Duchesnay, Édouard",
        "Scikit-learn: Machine Learning in {Python}",
        2011,
        journal="Journal of Machine Learning Research",
        volume="12",
        pages="2825--2830",
    ),
    preprint(
        "xiao2017fashion",
        "Xiao, Han and Rasul, Kashif and Vollgraf, Roland",
        "{Fashion-MNIST}: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
        2017,
        "1708.07747",
    ),
    work(
        "krizhevsky2009learning",
        "techreport",
        "Krizhevsky, Alex",
        "Learning Multiple Layers of Features from Tiny Images",
        2009,
        institution="University of Toronto",
    ),
    work(
        "le2015tiny",
        "misc",
        "Le, Ya and Yang, Xuan S.",
        "Tiny {ImageNet} Visual Recognition Challenge",
        2015,
        howpublished="Stanford CS 231N",
    ),
    talk(
        "li2017deeper",
        "Li, Da and Yang, Yongxin and Song, Yi-Zhe and Hospedales, Timothy M.",
        "Deeper, Broader and Artier Domain Generalization",
        2017,
        "Proceedings of the IEEE International Conference on Computer Vision",
        pages="5542--5550",
    ),
    talk(
        "street1993nuclear",
        "Street, W. Nick and Wolberg, William H. and Mangasarian, Olvi L.",
        "Nuclear Feature Extraction for Breast Tumor Diagnosis",
        1993,
        "Biomedical Image Processing and Biomedical Visualization",
        series="Proceedings of SPIE",
        volume="1905",
        pages="861--870",
    ),
    work(
        "aeberhard1992wine",
        "misc",
        "Aeberhard, Stefan and Forina, M.",
        "Wine",
        1992,
        howpublished="UCI Machine Learning Repository",
        doi="10.24432/C5PC7J",
    ),
    work(
        "efron2004least",
        "article",
        "Efron, Bradley and Hastie, Trevor and Johnstone, Iain and Tibshirani, Robert",
        "Least Angle Regression",
        2004,
        journal="The Annals of Statistics",
        volume="32",
        number="2",
        pages="407--499",
    ),
    talk(
        "zhang2015character",
        "Zhang, Xiang and Zhao, Junbo and LeCun, Yann",
        "Character-level Convolutional Networks for Text Classification",
        2015,
        NEURIPS,
        volume="28",
    ),
    preprint(
        "caldas2018leaf",
        "Caldas, Sebastian and Duddu, Sai Meher Karthik and Wu, Peter and Li, Tian and Konečný, Jakub and McMahan, H."
        " Brendan and Smith, Virginia and Talwalkar, Ameet",
        "{LEAF}: A Benchmark for Federated Settings",
        2018,
        "1812.01097",
    ),
    talk(
        "yurochkin2019bayesian",
        "Yurochkin, Mikhail and Agarwal, Mayank and Ghosh, Soumya and Greenewald, Kristjan and Hoang, Nghia and"
        " Khazaeni, Yasaman",
        "{Bayesian} Nonparametric Federated Learning of Neural Networks",
        2019,
        **icml(36, 97, "7252--7261"),
    ),
    talk(
        "li2022federated",
        "Li, Qinbin and Diao, Yiqun and Chen, Quan and He, Bingsheng",
        "Federated Learning on Non-{IID} Data Silos: An Experimental Study",
        2022,
        "2022 IEEE 38th International Conference on Data Engineering",
        pages="965--978",
    ),
    preprint(
        "beutel2020flower",
        "Beutel, Daniel J. and Topal, Taner and Mathur, Akhil and Qiu, Xinchi and Fernandez-Marques, Javier and Gao,"
        " Yan and Sani, Lorenzo and Li, Kwing Hei and Parcollet, Titouan and {Porto Buarque de Gusmão}, Pedro and Lane,"
        " Nicholas D.",
        "Flower: A Friendly Federated Learning Research Framework",
        2020,
        "2007.14390",
    ),
)
