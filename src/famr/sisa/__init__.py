"""SISA: exact removal by retraining the shards that saw the data."""
