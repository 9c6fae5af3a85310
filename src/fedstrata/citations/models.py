"""Publications of models."""

from fedstrata.citations.form import ICLR, NEURIPS, icml, preprint, talk, work

MODELS = (
    work(
        "lecun1998gradient",
        "article",
        "LeCun, Yann and Bottou, Léon and Bengio, Yoshua and Haffner, Patrick",
        "Gradient-Based Learning Applied to Document Recognition",
        1998,
        journal="Proceedings of the IEEE",
        volume="86",
        number="11",
        pages="2278--2324",
    ),
    talk(
        "lu2025fedsmu",
        "Lu, Xinyi and Zhang, Hao and Li, Chenglin and Lu, Weijia and Yang, Zhifei and Dai, Wenrui and Zhang, Xiaodong"
        " and Ma, Xiaofeng and Zhang, Can and Zou, Junni and Xiong, Hongkai",
        "{FedSMU}: Communication-Efficient and Generalization-Enhanced Federated Learning through Symbolic Model"
        " Updates",
        2025,
        **icml(42, 267, "40903--40929"),
    ),
    talk(
        "zhu2019deep",
        "Zhu, Ligeng and Liu, Zhijian and Han, Song",
        "Deep Leakage from Gradients",
        2019,
        NEURIPS,
    ),
    preprint(
        "nguyen2024towards",
        "Nguyen, Minh Duong and Le, Khanh and Do, Khoi and Tran, Nguyen H. and Nguyen, Duc and Trinh, Chien and Yang,"
        " Zhaohui",
        "Towards Layer-Wise Personalized Federated Learning: Adaptive Layer Disentanglement via Conflicting Gradients",
        2024,
        "2410.02845",
    ),
    talk(
        "he2016deep",
        "He, Kaiming and Zhang, Xiangyu and Ren, Shaoqing and Sun, Jian",
        "Deep Residual Learning for Image Recognition",
        2016,
        "Proceedings of the IEEE Conference on Computer Vision and Pattern Recognition",
        pages="770--778",
    ),
    work(
        "page2018resnet",
        "misc",
        "Page, David",
        "How to Train Your {ResNet}",
        2018,
        howpublished="Myrtle.ai blog",
        url="https://www.myrtle.ai/2018/09/24/how_to_train_your_resnet/",
    ),
    talk(
        "simonyan2015very",
        "Simonyan, Karen and Zisserman, Andrew",
        "Very Deep Convolutional Networks for Large-Scale Image Recognition",
        2015,
        ICLR,
    ),
    preprint(
        "howard2017mobilenets",
        "Howard, Andrew G. and Zhu, Menglong and Chen, Bo and Kalenichenko, Dmitry and Wang, Weijun and Weyand, Tobias "
        "and Andreetto, Marco and Adam, Hartwig",
        "{MobileNets}: Efficient Convolutional Neural Networks for Mobile Vision Applications",
        2017,
        "1704.04861",
    ),
    talk(
        "dosovitskiy2021image",
        "Dosovitskiy, Alexey and Beyer, Lucas and Kolesnikov, Alexander and Weissenborn, Dirk and Zhai, Xiaohua and"
        " Unterthiner, Thomas and Dehghani, Mostafa and Minderer, Matthias and Heigold, Georg and Gelly, Sylvain and"
        " Uszkoreit, Jakob and Houlsby, Neil",
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        2021,
        ICLR,
    ),
    work(
        "hochreiter1997long",
        "article",
        "Hochreiter, Sepp and Schmidhuber, Jürgen",
        "Long Short-Term Memory",
        1997,
        journal="Neural Computation",
        volume="9",
        number="8",
        pages="1735--1780",
    ),
    talk(
        "vaswani2017attention",
        "Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and Gomez, Aidan N."
        " and Kaiser, Łukasz and Polosukhin, Illia",
        "Attention is All you Need",
        2017,
        NEURIPS,
        volume="30",
    ),
    talk(
        "wang2024why",
        "Wang, Haolin and Liu, Xuefeng and Niu, Jianwei and Guo, Wenkai and Tang, Shaojie",
        "Why Go Full? Elevating Federated Learning Through Partial Network Updates",
        2024,
        NEURIPS,
        volume="37",
    ),
)
