"What several test modules use."
import pytest
import torch


@pytest.fixture
def one_thread():
    "Pictures this small gain nothing from a second thread"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
