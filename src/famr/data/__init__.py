"""Images by name: `open_data("digits")`, `"folder:PATH"`, `"parquet:PATH"`, `"hf:ID"`, `"torchvision:NAME"`."""

from famr.data.dataset import Data, open_data
from famr.data.images import Images

__all__ = ["Data", "Images", "open_data"]
