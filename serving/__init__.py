"""A trained model behind HTTP: examples/serve.py reads the flags and starts it.

It imports `evaluation`, `runs`, `elbert` and `modeling`, and needs requirements/serve.txt.

questions           what a client asks, and how a way to ask reads and writes
classify_route      POST /classify, the server's own way
predict_route       POST /predict, that of Hugging Face's text-embeddings-inference
inference_protocol  /v2/models/NAME/infer, that of KServe and Triton
server              requests in, answers out: limits, clients that go, the end
runners             texts in, answers out: with a model whose slots are kept full, or a file
metrics             what GET /metrics tells
app                 all routes, and the process
"""
