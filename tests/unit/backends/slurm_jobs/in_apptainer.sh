#!/bin/sh
#SBATCH --job-name=train-0123456789ab
#SBATCH --comment="upshift 20260101-000000-aaaa add[1] attempt 1"
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=61036M
#SBATCH --gres=gpu:h200:2
#SBATCH --tmp=95368M
#SBATCH --no-requeue
#SBATCH --output="/shared/store/runs/r/tasks/add/1.1.out"

unset LD_LIBRARY_PATH PYTHONHOME PYTHONPATH VIRTUAL_ENV
exec apptainer exec --no-home --pwd / --nv --bind /home/ann/.upshift:/home/ann/.upshift --bind /shared/store:/shared/store --bind '/scratch/data of ann:/data' docker://registry.example.org/ml/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa python3 /home/ann/.upshift/code/ab --scheduled '/shared/it'"'"'s/spec.json'

#!/bin/sh
#SBATCH --job-name=add-0123456789ab
#SBATCH --comment="upshift 20260101-000000-aaaa add, 5 tasks"
#SBATCH --array=0-2,7,9
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --no-requeue
#SBATCH --output="/shared/100%%/runs/r/tasks/add/add-0123456789ab.%a.out"

unset LD_LIBRARY_PATH PYTHONHOME PYTHONPATH VIRTUAL_ENV
exec apptainer exec --no-home --pwd / --bind /home/ann/.upshift:/home/ann/.upshift --bind /shared/store:/shared/store --bind '/scratch/data of ann:/data' docker://registry.example.org/ml/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa /env/bin/python /home/ann/.upshift/code/ab --scheduled /shared/store/runs/r/tasks/add/add-0123456789ab.array "$SLURM_ARRAY_TASK_ID"

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

unset LD_LIBRARY_PATH PYTHONHOME PYTHONPATH VIRTUAL_ENV
exec srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=8 --cpu-bind=none --mpi=none --input=none --export=ALL --kill-on-bad-exit=0 --wait=60 apptainer exec --no-home --pwd / --nv --bind /home/ann/.upshift:/home/ann/.upshift --bind /shared/store:/shared/store --bind '/scratch/data of ann:/data' docker://registry.example.org/ml/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa python3 /home/ann/.upshift/code/ab --scheduled '/shared/it'"'"'s/spec.json'
