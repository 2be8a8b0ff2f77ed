# docker build --tag elbert .                              for CPUs
# docker build --tag elbert --build-arg TORCH=cu130 .      for GPUs; then docker run --gpus all
# docker run --rm --user "$(id -u)" --volume "$PWD/data:/data" elbert python run_glue.py --help
FROM python:3.11-slim
ARG TORCH=cpu
WORKDIR /project
COPY requirements.txt ./
COPY requirements requirements
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/$TORCH \
    --requirement requirements/serve.txt --requirement requirements/onnx.txt
COPY . .
# Whoever --user names may read the project, and has a home for what the hub sends.
RUN pip install --no-cache-dir --no-deps . && chmod -R a+rX . \
    && useradd --create-home --uid 1000 elbert && chmod a+rwx /home/elbert
ENV HOME=/home/elbert
USER elbert
