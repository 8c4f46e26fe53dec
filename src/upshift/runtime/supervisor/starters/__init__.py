"""How step processes come to be: forked from a zygote or from the supervisor, or started afresh."""
