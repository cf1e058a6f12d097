"""A log on any broker that speaks the Kafka protocol. `KafkaBackend` is in `backend`."""
