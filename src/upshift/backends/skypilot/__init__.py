"""SkyPilot: steps as managed jobs on machines that it rents in clouds, or on Kubernetes."""
