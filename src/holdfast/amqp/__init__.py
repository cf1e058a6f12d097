"""RabbitMQ queues and exchanges, synchronous outside. The only importer of aio-pika."""
