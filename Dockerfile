# docker build --tag elbert .
# docker run --rm --gpus all --volume "$PWD/data:/data" elbert python run_glue.py --help
FROM python:3.11-slim
WORKDIR /project
COPY requirements.txt .
RUN pip install --no-cache-dir --requirement requirements.txt
COPY . .
