"""AWS Batch: steps as jobs in containers on EC2, Spot and Fargate, with the store in S3."""
