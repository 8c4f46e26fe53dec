#!/bin/sh
#SBATCH --job-name=train-0123456789ab
#SBATCH --comment="upshift 20260101-000000-aaaa add[1] attempt 1"
#SBATCH --partition=gpu,spare
#SBATCH --account=vision
#SBATCH --qos=high
#SBATCH --constraint=infiniband
#SBATCH --reservation=friday
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=61036M
#SBATCH --gres=gpu:h200:2
#SBATCH --tmp=95368M
#SBATCH --time=2160
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --output="/shared/store/runs/r/tasks/add/1.1.out"
#SBATCH --nice=100

exec '/my env/bin/python' /home/ann/.upshift/code/ab --scheduled '/shared/it'"'"'s/spec.json'
