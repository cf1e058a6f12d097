"""The durable worker kit: state and loop for users' Python processes that are not Spark."""
