"""xformers: its function on a CPU."""

from xformers import ops

REQUIREMENTS = ["xformers==0.0.35"]
CANDIDATES = {"function": "identify"}
function = ops.memory_efficient_attention
