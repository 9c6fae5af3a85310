"""Folders of pictures: layouts, lazy reading, and what is refused (fault row 58)."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fedstrata.common.errors import ConfigError, DataError
from fedstrata.data import DataSpec, load


def picture(path, colour=(255, 0, 0), size=(20, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def tree(tmp_path):
    for label, colour in (("cat", (255, 0, 0)), ("dog", (0, 255, 0))):
        for k in range(5):
            picture(tmp_path / label / f"{k}.png", colour)
    return tmp_path


def folder(path, **more):
    settings = "".join(f", {k}={v!r}" for k, v in more.items())
    return DataSpec(data=f"folder(path={str(path)!r}, size=8, norm='raw'{settings})", clients=2)


def test_class_folders_are_read_a_batch_at_a_time(tree):
    fed = load(folder(tree))
    assert fed.train.lazy
    assert fed.task.labels == ("cat", "dog")
    assert (len(fed.train), len(fed.test)) == (8, 2)
    x = fed.train.take(torch.tensor([0, 7]))
    assert x.shape == (2, 3, 8, 8)
    assert x.is_contiguous()
    assert x[0, :, 4, 4].tolist() == [1, 0, 0]
    assert x[1, :, 4, 4].tolist() == [0, 1, 0]


def test_the_middle_of_a_wide_picture_is_kept(tmp_path):
    for label in "ab":
        for k in range(3):
            picture(tmp_path / label / f"{k}.png")
    pixels = np.zeros((8, 24, 3), dtype=np.uint8)
    pixels[:, 8:16] = 255
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    fed = load(folder(tmp_path, test=0.3))
    rows = [k for k, path in enumerate(fed.train.paths) if path.parent.name == "a" and path.name == "0.png"]
    samples, row = (
        (fed.train, rows[0]) if rows else (fed.test, next(k for k, p in enumerate(fed.test.paths) if p.name == "0.png"))
    )
    assert samples.take(torch.tensor([row])).min() == 1


@pytest.mark.parametrize("kind", ["client", "domain"])
def test_a_folder_of_clients_or_domains_is_natural(kind, tmp_path):
    for who, n in (("ann", 4), ("bob", 6)):
        for label in ("x", "y"):
            for k in range(n):
                picture(tmp_path / who / label / f"{k}.jpg")
    fed = load(folder(tmp_path, layout=f"{kind}/class/file"))
    assert fed.partition.law == f"natural(by={kind})"
    assert [fed.partition.size(i) for i in range(2)] == [6, 10]


def office(root, inner):
    """Office-31 in small: three domains of differing sizes with the same two classes, in its archive's form where
    ``inner`` is "images".
    """
    for domain, n in (("amazon", 10), ("dslr", 2), ("webcam", 5)):
        for label in ("back_pack", "mug"):
            for k in range(n):
                picture(root / domain / inner / label / f"frame_{k:04}.jpg")


@pytest.mark.parametrize(("inner", "layout"), [("images", "domain/images/class/file"), ("", "domain/class/file")])
def test_office_31_is_one_client_a_domain_with_a_fifth_of_each_class_for_testing(tmp_path, inner, layout):
    office(tmp_path, inner)
    fed = load(replace(folder(tmp_path, layout=layout), clients=3, test="client"))
    assert [fed.client_name(i) for i in range(3)] == ["amazon", "dslr", "webcam"]
    assert fed.partition.law == "natural(by=domain)"
    assert fed.task.labels == ("back_pack", "mug")
    assert [len(fed.training(i)) for i in range(3)] == [16, 4, 8]
    assert [fed.counts(i).tolist() for i in range(3)] == [[8, 8], [2, 2], [4, 4]]
    assert [len(fed.testing(i)[1]) for i in range(3)] == [4, 0, 2]


def test_a_layout_that_is_not_the_folders_own_names_the_one_that_is(tmp_path):
    office(tmp_path / "archive", "images")
    with pytest.raises(
        DataError, match=r"amazon/images holds folders of pictures.*set layout='domain/images/class/file'"
    ):
        load(folder(tmp_path / "archive", layout="domain/class/file"))
    office(tmp_path / "flat", "")
    with pytest.raises(DataError, match=r"amazon holds no folder images.*set layout='domain/class/file'"):
        load(folder(tmp_path / "flat", layout="domain/images/class/file"))


def test_grey_and_random_resized_crop(tree):
    spec = folder(tree, channels=1)
    fed = load(DataSpec(data=spec.data, augment="resized_crop + flip", clients=2))
    x = fed.train.take(torch.tensor([0]))
    assert fed.augment(x, torch.rand(1, 5)).shape == (1, 1, 8, 8)


def test_train_and_test_folders_are_the_two_sets(tree, tmp_path_factory):
    root = tmp_path_factory.mktemp("split")
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            for k in range(3):
                picture(root / part / label / f"{k}.png")
    fed = load(folder(root))
    assert (len(fed.train), len(fed.test)) == (6, 6)
    picture(root / "test" / "emu" / "0.png")
    with pytest.raises(DataError, match="class emu has no training picture"):
        load(folder(root))


def test_row_58_hidden_files_are_ignored_and_others_are_counted(tree):
    (tree / ".DS_Store").write_bytes(b"x")
    (tree / "cat" / ".hidden.png").write_bytes(b"x")
    (tree / "cat" / "notes.txt").write_text("x")
    fed = load(folder(tree))
    assert len(fed.train) + len(fed.test) == 10
    assert any("1 files are not pictures" in note for note in fed.notes)


def test_row_58_an_empty_class_folder_is_refused(tree):
    (tree / "emu").mkdir()
    with pytest.raises(DataError, match=r"emu holds no picture .*remove the folder"):
        load(folder(tree))


def test_pictures_a_level_too_deep_name_the_layout_that_is_meant(tmp_path):
    for who in ("ann", "bob"):
        for what in ("x", "y"):
            picture(tmp_path / who / what / "0.png")
            picture(tmp_path / who / what / "1.png")
    with pytest.raises(
        DataError, match=r"ann holds folders of pictures, and no picture itself; set layout='client/class/file'"
    ):
        load(folder(tmp_path))
    with pytest.raises(DataError, match=r"holds no pictures by layout client/class/file; set layout='class/file'\."):
        load(folder(tmp_path / "ann", layout="client/class/file"))
    with pytest.raises(DataError, match=r"nowhere does not exist; set path="):
        load(folder(tmp_path / "nowhere"))


def test_the_name_is_the_call_and_the_fingerprint_sees_other_pictures(tmp_path):
    for what in ("x", "y"):
        for k in range(3):
            picture(tmp_path / "pets" / what / f"{k}.png")
    first = load(folder(tmp_path / "pets"))
    assert first.name == "folder(pets, size=8, norm=raw)"
    assert load(folder(tmp_path / "pets")).fingerprint == first.fingerprint
    (tmp_path / "pets" / "x" / "0.png").rename(tmp_path / "pets" / "x" / "9.png")
    assert load(folder(tmp_path / "pets")).fingerprint != first.fingerprint


def test_row_58_a_client_may_lack_a_class(tmp_path):
    for who in ("ann", "bob"):
        for k in range(4):
            picture(tmp_path / who / "x" / f"{k}.png")
    picture(tmp_path / "ann" / "y" / "0.png")
    (tmp_path / "bob" / "y").mkdir()
    assert load(folder(tmp_path, layout="client/class/file")).task.labels == ("x", "y")


@pytest.mark.parametrize("target", ["outside", "loop", "file", "broken"])
def test_row_58_links_out_of_the_root_loops_and_broken_links_are_refused(target, tree, tmp_path_factory):
    away = tmp_path_factory.mktemp("away")
    picture(away / "secret.png")
    if target == "outside":
        (tree / "emu").symlink_to(away)
    elif target == "loop":
        (tree / "emu").symlink_to(tree)
    elif target == "file":
        (tree / "cat" / "9.png").symlink_to(away / "secret.png")
    else:
        (tree / "cat" / "9.png").symlink_to(tree / "cat" / "none.png")
    with pytest.raises(DataError, match="are not followed"):
        load(folder(tree))


def test_row_58_a_link_to_a_file_below_the_root_is_read(tree):
    (tree / "cat" / "9.png").symlink_to(tree / "cat" / "0.png")
    fed = load(folder(tree))
    assert len(fed.train) + len(fed.test) == 11


def test_a_damaged_picture_is_named(tree):
    for path in tree.glob("*/*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"\.png: a picture cannot be read"):
        load(folder(tree))


def test_a_folder_without_pictures_or_that_is_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no pictures"):
        load(folder(tmp_path))
    (tmp_path / "f").write_text("x")
    with pytest.raises(DataError, match="is a file"):
        load(folder(tmp_path / "f"))
    with pytest.raises(ConfigError, match="in \\(0, 1\\)"):
        load(folder(tmp_path, test=2.0))


def test_the_fingerprint_does_not_hold_the_folder(tree, tmp_path_factory):
    other = tmp_path_factory.mktemp("copy") / "elsewhere"
    shutil.copytree(tree, other)
    assert load(folder(tree)).fingerprint == load(folder(other)).fingerprint


def test_the_official_tiny_imagenet_folder(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for wnid in ("n01", "n02"):
        for k in range(3):
            picture(root / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", size=(64, 64))
        picture(root / "val" / "images" / f"val_{wnid}.JPEG", size=(64, 64))
    (root / "wnids.txt").write_text("n02\nn01\n")
    (root / "val" / "val_annotations.txt").write_text("val_n01.JPEG\tn01\t0\t0\t1\t1\nval_n02.JPEG\tn02\t0\t0\t1\t1\n")
    fed = load(DataSpec(data="tiny_imagenet(size=32)", root=tmp_path, clients=2))
    assert (len(fed.train), len(fed.test), fed.task.shape) == (6, 2, (3, 32, 32))
    assert fed.test.y.tolist() == [0, 1]
    assert fed.test.take(torch.tensor([0])).shape == (1, 3, 32, 32)


def test_resize_then_cut_keeps_the_middle(tmp_path):
    for label in "ab":
        for k in range(3):
            picture(tmp_path / label / f"{k}.png", size=(16, 16))
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    pixels[4:12, 4:12] = 255
    for path in tmp_path.glob("*/*.png"):
        Image.fromarray(pixels).save(path)
    fed = load(folder(tmp_path, resize=16))
    assert fed.train.take(torch.tensor([0])).min() == 1
    with pytest.raises(ConfigError, match="resize >= size"):
        load(folder(tmp_path, resize=4))
