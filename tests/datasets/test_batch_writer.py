"""Pixels read straight into a batch are those that pass through a cache."""

import pytest
import torch

from fastloader.datasets import OMEArrowDataset
from tests.ome_arrow_tables import ome_arrow_value, random_image, write_images

IMAGES = [random_image((1, 3, 1, 4, 5), seed=seed) for seed in range(5)]
INDICES = [5, 0, 3, 3, 2, 0, 1, 4]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    values = [ome_arrow_value(image) for image in IMAGES]
    return write_images(tmp_path_factory.mktemp("cells") / "a.parquet", [*values, None])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="float32"),
        pytest.param({"dtype": None}, id="as stored"),
        pytest.param({"dtype": torch.float64, "scale": 1 / 65535}, id="scaled"),
        pytest.param({"dtype": torch.float16, "scale": 1 / 65535}, id="half"),
        pytest.param({"channels": [2, 0]}, id="some channels"),
        pytest.param({"axes": "YXC"}, id="other axes"),
    ],
)
def test_batches_without_a_cache_are_those_with_one(path, options):
    options = {"on_null": "zeros", "progress": False, **options}
    kept = OMEArrowDataset(path, **options)
    read = OMEArrowDataset(path, preload=False, cache="none", **options)

    assert torch.equal(kept.get_batch(INDICES), read.get_batch(INDICES))
    assert torch.equal(kept[3], read[3])
    assert torch.equal(kept[5], read[5])


def test_images_of_several_types_are_one_batch(tmp_path):
    images = [random_image((1, 1, 1, 2, 3), dtype) for dtype in ("uint8", "float32", "uint16")]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    path = write_images(tmp_path / "a.parquet", values, encoding="bytes")
    kept = OMEArrowDataset(path, progress=False)
    read = OMEArrowDataset(path, preload=False, cache="none", progress=False)

    assert torch.equal(kept.get_batch([2, 1, 0, 1]), read.get_batch([2, 1, 0, 1]))
