"""What every run of a model starts from: texts as tensors, names of positions, what is explained, data sets."""
