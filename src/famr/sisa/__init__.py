"""SISA: exact removal by retraining the shards that were trained on the data [Bourtoule et al. 2021]."""

from famr.sisa.ensemble import Sisa, train_sisa
from famr.sisa.folder import load_sisa

__all__ = ["Sisa", "load_sisa", "train_sisa"]
