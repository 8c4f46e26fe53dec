#!/bin/sh
#SBATCH --job-name=add-1-0123456789ab
#SBATCH --comment="upshift 20260101-000000-aaaa add[1] attempt 1"
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --no-requeue
#SBATCH --output="/shared/store/runs/r/tasks/add/1.1.out"

exec /env/bin/python /home/ann/.upshift/code/ab --scheduled /shared/store/runs/r/tasks/add/1.1.spec.json
