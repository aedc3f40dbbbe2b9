"""The machine and its software: GPUs, links, driver, toolkits, packages and their binaries."""
