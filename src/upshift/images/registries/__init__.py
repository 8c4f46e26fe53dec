"""Image registries, by the protocol of Docker and OCI, and the logins that they want."""
