"""SISA: exact removal by retraining the shards that were trained on the data [Bourtoule et al. 2021]."""
