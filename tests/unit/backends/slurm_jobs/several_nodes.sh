#!/bin/sh
#SBATCH --job-name=train-0123456789ab
#SBATCH --comment="upshift 20260101-000000-aaaa add[1] attempt 1"
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=61036M
#SBATCH --gres=gpu:h200:2
#SBATCH --tmp=95368M
#SBATCH --no-requeue
#SBATCH --output="/shared/store/runs/r/tasks/add/1.1.out"

exec srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=8 --cpu-bind=none --mpi=none --input=none --export=ALL --kill-on-bad-exit=0 --wait=60 '/my env/bin/python' /home/ann/.upshift/code/ab --scheduled '/shared/it'"'"'s/spec.json'
