"""Classify the rows of Parquet files on Spark: each task makes its own Classifier.

    spark-submit examples/spark_classify.py --model_dir out/reviews/model --input in --output out

The model's folder has the same path on all nodes, and `pip install .` has been run there. Needs
pyspark and Java.
"""

import argparse
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

import elbert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--onnx", help="ONNX file of the model, which answers in its place")
    parser.add_argument("--input", required=True, help="folder of Parquet files")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--text_column", default="sentence1")
    args = parser.parse_args()

    def score(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        classify = elbert.Classifier(args.model_dir, onnx=args.onnx)  # once a partition
        for frame in frames:
            answers = classify(list(frame[args.text_column]))
            columns = {
                name: [x[name] for x in answers] for name in ("label", "score", "exit_layer")
            }
            yield frame.assign(**columns)

    spark = SparkSession.builder.appName("elbert").getOrCreate()
    table = spark.read.parquet(args.input)
    schema = StructType(list(table.schema.fields))
    schema.add("label", StringType()).add("score", DoubleType()).add("exit_layer", LongType())
    table.mapInPandas(score, schema).write.parquet(args.output)


if __name__ == "__main__":
    main()
