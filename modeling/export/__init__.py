"""A model with its exit rule as one ONNX graph."""
