"""What could not be read is named by its place, also within what wraps a dataset."""

import pytest
from torch.utils.data import Dataset, Subset

from fastloader import FastLoader


class Scans(Dataset):
    """Sample 73 cannot be read."""

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 73:
            raise ValueError("cannot decode")
        return index


def notes_of(dataset, **options):
    with pytest.raises(ValueError, match="cannot decode") as caught:
        list(FastLoader(dataset, 30, **options))
    return "\n".join(caught.value.__notes__)


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_of_a_subset_is_named_by_both_of_its_places(num_workers):
    notes = notes_of(Subset(Scans(), [*range(25), 73]), num_workers=num_workers)

    assert "sample at index 25, which is index 73 of Scans in the Subset" in notes


def test_a_sample_of_a_subset_of_a_subset_is_named():
    notes = notes_of(Subset(Subset(Scans(), range(50, 100)), [4, 23]), num_workers=0)

    assert "sample at index 1, which is index 73 of Scans in the Subset" in notes


def test_a_sample_that_a_subset_does_not_have_is_named():
    with pytest.raises(IndexError) as caught:
        list(FastLoader(Subset(Scans(), [1]), 2, sampler=[0, 5], num_workers=0))

    assert "sample at index 5." in caught.value.__notes__[0]


class InBulk(Scans):
    def __getitems__(self, indices):
        return [10 * index for index in indices]


def test_a_subset_passes_indices_on_to_a_dataset_that_reads_many():
    [batch] = FastLoader(Subset(InBulk(), [3, 73]), 2, num_workers=0)

    assert batch.tolist() == [30, 730]


def test_a_subset_may_be_asked_for_many_samples_at_once_without_batches():
    class Rows(Dataset):
        def __getitem__(self, indices):
            return list(indices)

    loader = FastLoader(Subset(Rows(), [5, 6, 7]), None, sampler=[[0, 2]], num_workers=0)

    assert list(loader) == [[5, 7]]


def test_a_batch_of_no_samples_is_told_as_one():
    with pytest.raises(IndexError) as caught:
        list(FastLoader(range(3), batch_sampler=[[1], []], num_workers=0))

    assert "no samples, as the batch sampler gave none" in caught.value.__notes__[-1]
