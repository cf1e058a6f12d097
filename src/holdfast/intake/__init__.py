"""How data comes in: chunks, ENDs, files bound in place. Durable first, acknowledged after."""
