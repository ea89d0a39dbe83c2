"""Letters for the axes of tensors, explained once and used in every signature.

| letter | axis |
|---|---|
| `B` | rows of the batch |
| `R` | rows that are kept of it |
| `T` | steps of the sequence that is being processed |
| `S` | steps of the source sequence |
| `L` | steps that can be read: those before and those that are being processed |
| `P` | positions that read (all `T` of them unless a subset is asked for) |
| `D` | width of the model |
| `C` | channels of a convolution |
| `H` | heads |
| `d` | width of a head |
| `K` | width of a convolution kernel |
| `N` | layers |
| `V` | vocabulary |

Annotations are jaxtyping's, written as ``Float[Tensor, "B T D"]``. They document shapes everywhere; the test run checks
them too.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Tensor"]
