"""The transport: topics, partitions, offsets. References travel here, data does not."""
