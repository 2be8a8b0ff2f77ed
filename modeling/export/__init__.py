"""A model with its exit rule as one ONNX graph.

loops: the loop over depth, as `torch.export` takes it   graph: how that is written
"""
