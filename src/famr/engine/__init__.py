"""How a step is computed: devices, precision, memory, graphs, several processes."""
