"""Image files: the .npz stacks, IDX and CIFAR binary, damaged and foreign ones."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedstrata.common.errors import DataError
from fedstrata.data import DataSpec, load
from fedstrata.data.io.formats import open_picture, read_idx, read_npz
from fedstrata.data.io.normalization import NORMS
from fedstrata.data.location import Place
from fedstrata.data.sources.images import DEBIAN_FASHION

RNG = np.random.default_rng(0)


def idx(array, head=None):
    return (head or bytes([0, 0, 8, array.ndim])) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def write_idx(folder, *, zipped=False, y=None):
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, n in (("train", 40), ("t10k", 20)):
        made[part] = (
            RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8),
            (np.arange(n) % 10).astype(np.uint8) if y is None else y[:n],
        )
        for kind, array in zip(("images-idx3", "labels-idx1"), made[part], strict=True):
            data = idx(array)
            name = f"{part}-{kind}-ubyte"
            (folder / f"{name}.gz").write_bytes(gzip.compress(data)) if zipped else (folder / name).write_bytes(data)
    return made


def webp_stack(pixels):
    n, h, w = pixels.shape[:3]
    blob = io.BytesIO()
    Image.fromarray(pixels.reshape(n * h, w, *pixels.shape[3:])).save(blob, "WEBP", lossless=True)
    return np.frombuffer(blob.getvalue(), dtype=np.uint8)


def write_npz(folder, n=12, side=32, **more):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    arrays = {
        "labels": (np.arange(n) % 10).astype(np.uint8),
        "classes": np.array([f"c{k}" for k in range(10)]),
        "size": np.array([side, side, 3]),
    }
    arrays |= {"m0000": webp_stack(pixels[:7]), "m0001": webp_stack(pixels[7:])} | more
    for part in ("train", "test"):
        np.savez(folder / f"{part}.npz", **arrays)
    return pixels


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("below", ["mnist", "MNIST/raw", "."])
def test_idx_files_are_read_plain_and_gzipped(zipped, below, tmp_path):
    made = write_idx(tmp_path / below, zipped=zipped)
    fed = load(DataSpec(data="mnist(norm=raw)", root=tmp_path, clients=2))
    assert torch.equal(
        (fed.train.take(torch.arange(40)) * 255).round().to(torch.uint8)[:, 0], torch.from_numpy(made["train"][0])
    )
    assert fed.test.y.tolist() == made["t10k"][1].tolist()


def test_debian_fashion_mnist_is_found_where_no_root_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr("fedstrata.data.sources.images.DEBIAN_FASHION", tmp_path)
    write_idx(tmp_path, zipped=True)
    assert load(DataSpec(data="fashion_mnist", clients=2)).task.labels[9] == "Ankle boot"
    with pytest.raises(DataError, match="found none of"):
        load(DataSpec(data="fashion_mnist", root=tmp_path / ".."))


def test_debian_fashion_mnist_itself():
    if not DEBIAN_FASHION.is_dir():
        pytest.skip("apt-get install dataset-fashion-mnist")
    fed = load(DataSpec(data="fashion_mnist"))
    assert (len(fed.train), len(fed.test)) == (60_000, 10_000)


def test_fashion_mnist_without_any_folder_names_the_package_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("fedstrata.data.sources.images.DEBIAN_FASHION", tmp_path / "none")
    with pytest.raises(DataError, match="or install the files under"):
        load(DataSpec(data="fashion_mnist"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0\0\x0d\3" + b"\0" * 12, "is not that of an IDX file"),
        (idx(np.zeros((2, 3), dtype=np.uint8))[:-1], "the file has 5"),
        (idx(np.zeros((2, 3), dtype=np.uint8)) + b"x", "the file has more"),
        (b"", "header  is not"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "the file has"),
    ],
)
def test_a_damaged_idx_file_is_refused(data, said, tmp_path):
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(DataError, match=said):
        read_idx(tmp_path / "f")


def test_a_cut_gzip_is_refused(tmp_path):
    (tmp_path / "f.gz").write_bytes(gzip.compress(idx(RNG.integers(0, 256, (20, 30), dtype=np.uint8)))[:200])
    with pytest.raises(DataError, match="damaged"):
        read_idx(tmp_path / "f.gz")


def test_row_56_a_label_out_of_range_names_file_and_row(tmp_path):
    write_idx(tmp_path / "mnist", y=np.array([*range(10), 10, *([0] * 29)], dtype=np.uint8))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte: row 10 has label 10"):
        load(DataSpec(data="mnist", root=tmp_path))


def cifar(folder, label_bytes, names):
    folder.mkdir(parents=True)
    made = {}
    for name in names:
        labels = RNG.integers(0, 10, (6, label_bytes), dtype=np.uint8)
        made[name] = RNG.integers(0, 256, (6, 3072), dtype=np.uint8), labels
        (folder / name).write_bytes(np.concatenate([labels, made[name][0]], 1).tobytes())
    return made


def test_official_cifar10_binary(tmp_path):
    made = cifar(
        tmp_path / "cifar-10-batches-bin", 1, [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    )
    fed = load(DataSpec(data="cifar10(norm=raw)", root=tmp_path, clients=2))
    assert len(fed.train) == 30
    x = (fed.train.take(torch.tensor([7])) * 255).round()
    assert torch.equal(x.flatten(), torch.from_numpy(made["data_batch_2.bin"][0][1]).float())
    assert fed.test.y.tolist() == made["test_batch.bin"][1][:, 0].tolist()


@pytest.mark.parametrize(("labels", "classes", "column"), [("fine", 100, 1), ("coarse", 20, 0)])
def test_official_cifar100_binary_fine_and_coarse(labels, classes, column, tmp_path):
    made = cifar(tmp_path / "cifar-100-binary", 2, ["train.bin", "test.bin"])
    fed = load(DataSpec(data=f"cifar100(labels={labels})", root=tmp_path, clients=2))
    assert fed.task.classes == classes
    assert fed.train.y.tolist() == made["train.bin"][1][:, column].tolist()


def test_a_cut_cifar_file_is_refused(tmp_path):
    cifar(tmp_path / "cifar-100-binary", 2, ["train.bin", "test.bin"])
    whole = (tmp_path / "cifar-100-binary/test.bin").read_bytes()
    (tmp_path / "cifar-100-binary/test.bin").write_bytes(whole[:-1])
    with pytest.raises(DataError, match="not a multiple of a record of 3074"):
        load(DataSpec(data="cifar100", root=tmp_path))


def test_webp_stacks_are_normalised_when_taken(tmp_path):
    pixels = write_npz(tmp_path / "cifar10")
    fed = load(DataSpec(data="cifar10", root=tmp_path, clients=2))
    x = fed.train.take(torch.tensor([9, 0]))
    mean, std = (np.array(v) for v in NORMS["cifar10"])
    assert fed.train.x.dtype == torch.uint8
    assert x.is_contiguous()
    np.testing.assert_allclose(
        x.numpy(), ((pixels[[9, 0]] / 255 - mean) / std).transpose(0, 3, 1, 2), atol=1e-5
    )  # float32 rounding at size 2


def test_augment_black_is_a_black_pixel(tmp_path):
    write_npz(tmp_path / "cifar10")
    fed = load(DataSpec(data="cifar10", root=tmp_path, clients=2, augment="crop(pad=4)"))
    corner = fed.augment(fed.train.take(torch.tensor([0])), torch.zeros(1, 2))[0, :, 0, 0]
    mean, std = (torch.tensor(v) for v in NORMS["cifar10"])
    assert torch.allclose(corner, -mean / std)


def test_object_arrays_are_refused_and_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="Object arrays need pickle"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("cut", [10, 2000])
def test_a_damaged_npz_is_refused(cut, tmp_path):
    write_npz(tmp_path / "cifar10")
    file = tmp_path / "cifar10/train.npz"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"train\.npz"):
        load(DataSpec(data="cifar10", root=tmp_path))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"labels": np.zeros(11, dtype=np.uint8)}, "more pictures than its 11 labels"),
        ({"labels": np.zeros(13, dtype=np.uint8)}, "12 pictures and 13 labels"),
        ({"labels": np.full(12, 10, dtype=np.uint8)}, "row 0 has label 10"),
        ({"labels": np.full(12, 0.5)}, "labels are float64"),
        ({"size": np.array([31, 31, 3])}, "stacks of 31 x 31"),
        ({"m0001": np.zeros(50, dtype=np.uint8)}, "cannot be read"),
    ],
)
def test_an_npz_that_contradicts_itself_is_refused(more, said, tmp_path):
    write_npz(tmp_path / "cifar10", **more)
    with pytest.raises(DataError, match=said):
        load(DataSpec(data="cifar10", root=tmp_path))


def test_the_files_of_another_set_are_refused(tmp_path):
    write_npz(tmp_path)
    with pytest.raises(DataError, match=r"Does data\.root point to another set"):
        load(DataSpec(data="mnist(norm=raw)", root=tmp_path))


def test_pictures_with_too_many_pixels_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    Image.new("L", (20, 20)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="cannot be read"):
        open_picture(tmp_path / "a.png", 1, "a.png")


def test_a_replaced_file_is_read_again(tmp_path):
    write_npz(tmp_path / "cifar10")
    one = load(DataSpec(data="cifar10", root=tmp_path, clients=2)).train.x
    write_npz(tmp_path / "cifar10")
    assert not torch.equal(one, load(DataSpec(data="cifar10", root=tmp_path, clients=2)).train.x)


def test_a_file_is_looked_for_below_the_root_first(tmp_path):
    (tmp_path / "x.csv").write_text("")
    assert Place(tmp_path).file("table", "x.csv") == tmp_path / "x.csv"
    with pytest.raises(DataError, match=r"absolute or relative to data\.root"):
        Place(tmp_path).file("table", "y.csv")


@pytest.mark.parametrize(
    ("data", "shape", "classes", "sizes"),
    [
        ("mnist", (1, 28, 28), 10, (60_000, 10_000)),
        ("cifar10", (3, 32, 32), 10, (50_000, 10_000)),
        ("pacs", (3, 64, 64), 7, (7_984, 2_007)),
        ("tiny_imagenet(size=32)", (3, 32, 32), 100, (15_000, 3_000)),
    ],
)
def test_real_images(data, shape, classes, sizes, real):
    root = real("tiny_imagenet_sub" if data.startswith("tiny") else data)
    fed = load(DataSpec(data=data, root=root, partition="iid"))
    assert (fed.task.shape, fed.task.classes) == (shape, classes)
    assert (len(fed.train), len(fed.test)) == sizes
    x = fed.train.take(fed.training(0)[:256])
    assert x.mean().abs() < 1.5  # normalised by the set's (or ImageNet's) figures; sketches are white
    assert 0.5 < x.std() < 1.5


def test_mnist_writers_are_clients_and_their_tests_are_by_class_mix(real):
    fed = load(DataSpec(data="mnist", root=real("mnist"), partition="natural", test="client"))
    assert fed.clients == 539
    which, rows = fed.own_test.indices(0)
    assert which == "test"
    assert torch.equal(fed.official.y[torch.from_numpy(rows)].bincount(minlength=10), fed.counts(0))


def test_pacs_domains_are_clients_and_test_on_their_own_domain(real):
    fed = load(DataSpec(data="pacs(size=16)", root=real("pacs"), partition="natural", test="both"))
    assert [len(fed.testing(i)[1]) + fed.partition.size(i) for i in range(4)] in (
        [1670, 2048, 2344, 3929],
        [2048, 2344, 1670, 3929],
    )
    assert fed.task.shape == (3, 16, 16)


def test_cifar10_says_which_test_images_are_not_exact(real):
    assert "9000 of 10000" in load(DataSpec(data="cifar10", root=real("cifar10"))).notes[0]


def test_the_pickled_cifar_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="get the binary version"):
        load(DataSpec(data="cifar10", root=tmp_path))
