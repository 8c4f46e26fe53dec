#!/bin/sh
#SBATCH --job-name=add-0123456789ab
#SBATCH --comment="upshift 20260101-000000-aaaa add, 5 tasks"
#SBATCH --array=0-2,7,9
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --no-requeue
#SBATCH --output="/shared/100%%/runs/r/tasks/add/add-0123456789ab.%a.out"

exec /env/bin/python /home/ann/.upshift/code/ab --scheduled /shared/store/runs/r/tasks/add/add-0123456789ab.array "$SLURM_ARRAY_TASK_ID"
