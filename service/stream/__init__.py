"""The stream worker: alerts from Kafka, Redis or files through the data plane and out again, none of them lost."""
