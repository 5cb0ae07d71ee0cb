"""Writes golden.safetensors with Hugging Face's implementation (pip install safetensors numpy)."""

import numpy as np
from safetensors import TensorSpec, serialize_file

arrays = {
    "rnn.weight_ih_l0": np.array(
        [[0.5, -1.25, 3.0], [1e-38, np.inf, -0.0]], dtype=np.float32
    ),
    'rnn.bias \u00e9"\\': np.array([7.0], dtype=np.float32),
    "scalar": np.array(-2.0, dtype=np.float32),
    "empty": np.zeros((4, 0), dtype=np.float32),
    "half": np.array([0x3F80, 0xC000, 0x3E80], dtype=np.uint16),  # 1, -2, 0.25
    "count": np.array([-3, 1 << 40], dtype=np.int64),
    "position": np.array([1 << 63], dtype=np.uint64),
}
serialize_file(
    {
        name: TensorSpec(
            dtype="bfloat16" if name == "half" else a.dtype.name,
            shape=a.shape,
            data_ptr=a.ctypes.data,
            data_len=a.nbytes,
        )
        for name, a in arrays.items()
    },
    "golden.safetensors",
    metadata={"format": "pt", "maker": "safetensors"},
)
