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

set --
if [ "$(id -u)" -ne 0 ]; then set -- --userns=keep-id; fi
for device in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do set -- "$@" --device "nvidia.com/gpu=$device"; done
exec podman run --rm --network=host --workdir=/ --entrypoint=python3 --security-opt=label=disable --memory=64000000000b --memory-swap=64000000000b --shm-size=32000000000b --cpus=7.5 --volume /home/ann/.upshift:/home/ann/.upshift --volume /shared/store:/shared/store --volume '/scratch/data of ann:/data' --env UPSHIFT_ORDER --env CUDA_VISIBLE_DEVICES --env ROCR_VISIBLE_DEVICES --env HIP_VISIBLE_DEVICES --env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY --env AWS_SESSION_TOKEN --env AZURE_STORAGE_KEY --env AZURE_STORAGE_ACCOUNT_KEY --env AZURE_STORAGE_SAS_TOKEN --env AZURE_CLIENT_SECRET --env AZURE_STORAGE_CONNECTION_STRING --env SLURM_JOB_ID --env SLURM_JOB_NAME --env SLURM_ARRAY_JOB_ID --env SLURM_ARRAY_TASK_ID --env SLURM_CPUS_PER_TASK --env SLURM_NODEID --env SLURM_LAUNCH_NODE_IPADDR --env SLURMD_NODENAME --env UPSHIFT_NODE --env UPSHIFT_NODES --env UPSHIFT_MAIN_NODE --env UPSHIFT_NODES_TOKEN --env UPSHIFT_NODE_NAME --env UPSHIFT_NODE_ADDRESS --env UPSHIFT_NODES_WAIT --env UPSHIFT_NODES_SILENCE --env HOME=/tmp --env UPSHIFT_HOME=/home/ann/.upshift --user="$(id -u):$(id -g)" "$@" registry.example.org/ml/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa /home/ann/.upshift/code/ab --scheduled '/shared/it'"'"'s/spec.json'

#!/bin/sh
#SBATCH --job-name=add-0123456789ab
#SBATCH --comment="upshift 20260101-000000-aaaa add, 5 tasks"
#SBATCH --array=0-2,7,9
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --no-requeue
#SBATCH --output="/shared/100%%/runs/r/tasks/add/add-0123456789ab.%a.out"

set --
exec podman run --rm --network=host --workdir=/ --entrypoint=/env/bin/python --security-opt=label=disable --volume /home/ann/.upshift:/home/ann/.upshift --volume /shared/store:/shared/store --volume '/scratch/data of ann:/data' --env UPSHIFT_ORDER --env CUDA_VISIBLE_DEVICES --env ROCR_VISIBLE_DEVICES --env HIP_VISIBLE_DEVICES --env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY --env AWS_SESSION_TOKEN --env AZURE_STORAGE_KEY --env AZURE_STORAGE_ACCOUNT_KEY --env AZURE_STORAGE_SAS_TOKEN --env AZURE_CLIENT_SECRET --env AZURE_STORAGE_CONNECTION_STRING --env SLURM_JOB_ID --env SLURM_JOB_NAME --env SLURM_ARRAY_JOB_ID --env SLURM_ARRAY_TASK_ID --env SLURM_CPUS_PER_TASK --env SLURM_NODEID --env SLURM_LAUNCH_NODE_IPADDR --env SLURMD_NODENAME --env UPSHIFT_NODE --env UPSHIFT_NODES --env UPSHIFT_MAIN_NODE --env UPSHIFT_NODES_TOKEN --env UPSHIFT_NODE_NAME --env UPSHIFT_NODE_ADDRESS --env UPSHIFT_NODES_WAIT --env UPSHIFT_NODES_SILENCE --env HOME=/tmp --env UPSHIFT_HOME=/home/ann/.upshift --user=1000:1000 "$@" registry.example.org/ml/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa /home/ann/.upshift/code/ab --scheduled /shared/store/runs/r/tasks/add/add-0123456789ab.array "$SLURM_ARRAY_TASK_ID"

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

exec srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=8 --cpu-bind=none --mpi=none --input=none --export=ALL --kill-on-bad-exit=0 --wait=60 sh -c 'set --
if [ "$(id -u)" -ne 0 ]; then set -- --userns=keep-id; fi
for device in $(echo "$CUDA_VISIBLE_DEVICES" | tr , '"'"' '"'"'); do set -- "$@" --device "nvidia.com/gpu=$device"; done
exec podman run --rm --network=host --workdir=/ --entrypoint=python3 --security-opt=label=disable --memory=64000000000b --memory-swap=64000000000b --shm-size=32000000000b --cpus=7.5 --volume /home/ann/.upshift:/home/ann/.upshift --volume /shared/store:/shared/store --volume '"'"'/scratch/data of ann:/data'"'"' --env UPSHIFT_ORDER --env CUDA_VISIBLE_DEVICES --env ROCR_VISIBLE_DEVICES --env HIP_VISIBLE_DEVICES --env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY --env AWS_SESSION_TOKEN --env AZURE_STORAGE_KEY --env AZURE_STORAGE_ACCOUNT_KEY --env AZURE_STORAGE_SAS_TOKEN --env AZURE_CLIENT_SECRET --env AZURE_STORAGE_CONNECTION_STRING --env SLURM_JOB_ID --env SLURM_JOB_NAME --env SLURM_ARRAY_JOB_ID --env SLURM_ARRAY_TASK_ID --env SLURM_CPUS_PER_TASK --env SLURM_NODEID --env SLURM_LAUNCH_NODE_IPADDR --env SLURMD_NODENAME --env UPSHIFT_NODE --env UPSHIFT_NODES --env UPSHIFT_MAIN_NODE --env UPSHIFT_NODES_TOKEN --env UPSHIFT_NODE_NAME --env UPSHIFT_NODE_ADDRESS --env UPSHIFT_NODES_WAIT --env UPSHIFT_NODES_SILENCE --env HOME=/tmp --env UPSHIFT_HOME=/home/ann/.upshift --user="$(id -u):$(id -g)" "$@" registry.example.org/ml/train@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa /home/ann/.upshift/code/ab --scheduled '"'"'/shared/it'"'"'"'"'"'"'"'"'s/spec.json'"'"''
