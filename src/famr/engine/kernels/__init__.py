"""Speed on CUDA: kernels of our own, for what the library takes longer for than to read and write the numbers.

They are small CUDA sources, compiled by what comes with torch in a quarter of a second, while the images are brought
to the device; what a run still waits for them is counted with its steps. Before one is used it has to answer as the
library does; where it cannot be compiled, or does not, the library's is used.
"""

from famr.engine.kernels.compiling import waited
from famr.engine.kernels.gelu import Gelu
from famr.engine.kernels.layer_norm import LayerNorms
from famr.engine.kernels.network import get_ready

__all__ = ["Gelu", "LayerNorms", "get_ready", "waited"]
