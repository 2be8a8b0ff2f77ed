"""A model with its exit rule as one ONNX graph: its loop over depth, and how that is written."""
