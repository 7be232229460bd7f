import pytest

from _data import Images, find_problem, read_reason, write_manifest


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTLOADER_BENCHMARK_DATA", str(tmp_path))
    found = Images.of("generated", "TIFF", smoke=True)
    found.path.mkdir()
    for number in range(3):
        (found.path / f"{number}.tif").write_bytes(bytes([number]) * 100)
    write_manifest(found.path)
    return found


def test_what_is_whole_has_no_problem(images):
    assert find_problem(images.path) == ""


def test_a_changed_byte_is_found(images):
    (images.path / "1.tif").write_bytes(bytes(100))

    assert find_problem(images.path) == f"{images.path.name}/1.tif is damaged"


@pytest.mark.parametrize("change", ["missing", "added"])
def test_a_missing_and_an_added_file_are_found(images, change):
    if change == "missing":
        (images.path / "1.tif").unlink()
    else:
        (images.path / "3.tif").touch()

    assert find_problem(images.path).startswith("files are missing")


def test_images_without_a_manifest_are_half_written(images):
    images.path.with_name(f"{images.path.name}.manifest.json").unlink()

    assert find_problem(images.path) == "there is no manifest"


def test_what_could_not_be_made_is_tried_again_and_keeps_its_reason(images):
    write_manifest(images.path, "a package is missing")

    assert "could not be made" in find_problem(images.path)
    assert read_reason(images.path) == "a package is missing"
