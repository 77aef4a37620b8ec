"""The digits data set."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from famr.data import open_data


def test_digits_are_those_of_scikit_learn_in_eight_bits():
    bunch = load_digits()
    data = open_data("digits", whole=True)
    assert data.labels == tuple("0123456789")
    assert len(data.train) == 1797
    assert data.train.targets.tolist() == bunch.target.tolist()
    for row in (0, 5, 1796):
        pixels = data.train.pixels(row, 1)
        assert pixels.shape == (1, 8, 8)
        np.testing.assert_allclose(pixels[0].numpy() / 255, bunch.images[row] / 16, atol=0.5 / 255 + 1e-9)


def test_digits_have_a_parity_column_as_an_example_of_a_concept():
    train = open_data("digits", whole=True).train
    assert train.column("parity") == [("even", "odd")[target % 2] for target in train.targets.tolist()]


def test_digits_have_their_row_as_id_and_are_not_mirrored():
    data = open_data("digits", whole=True)
    assert (data.train.ids[0], data.train.ids[-1]) == ("digits/0", "digits/1796")
    assert not data.mirror
