"""The checkpoint auditor: files become one logical model, the model becomes evidence, identity is independent of
sharding."""
