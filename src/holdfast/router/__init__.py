"""The RabbitMQ door: clients' chunks and ENDs come over queues and go to intake."""
