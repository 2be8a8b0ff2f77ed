"""run_glue.py's evaluation and prediction, and the texts that calibrate an int8 ONNX file."""
