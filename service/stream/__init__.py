"""Stream worker: consumes alerts from Kafka, Redis or files, classifies them and publishes the results."""
