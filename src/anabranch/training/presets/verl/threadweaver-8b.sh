#!/bin/sh
# ThreadWeaver's reinforcement learning with verl 0.9: P-GRPO, batch 128, 8 rollouts, 1e-6, clip
# 0.2 / 0.28, no KL, no entropy, advantages by the mean alone. One node of 8 GPUs; on a Ray cluster
# start Ray on every node first and give NODES. Further settings go behind the script's name.
#   MODEL=… TRAIN=…parquet TEST=…parquet sh threadweaver-8b.sh
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
exec python3 -m verl.trainer.main_ppo \
  trainer.use_v1=True \
  algorithm.adv_estimator=grpo \
  algorithm.norm_adv_by_std_in_grpo=False \
  algorithm.use_kl_in_reward=False \
  data.train_files="${TRAIN:?parquet of problems}" \
  data.val_files="${TEST:?parquet of problems}" \
  data.train_batch_size=128 \
  data.max_prompt_length=4096 \
  data.max_response_length=36864 \
  data.return_raw_chat=True \
  actor_rollout_ref.model.path="${MODEL:?checkpoint}" \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=128 \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.clip_ratio_low=0.2 \
  actor_rollout_ref.actor.clip_ratio_high=0.28 \
  actor_rollout_ref.actor.loss_agg_mode=token-mean \
  actor_rollout_ref.actor.use_kl_loss=False \
  actor_rollout_ref.actor.entropy_coeff=0 \
  actor_rollout_ref.rollout.name="${ENGINE:-vllm}" \
  actor_rollout_ref.rollout.mode=async \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.temperature=1.0 \
  actor_rollout_ref.rollout.calculate_log_probs=True \
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$HERE/agent_loops.yaml" \
  actor_rollout_ref.rollout.agent.default_agent_loop=fork_join \
  trainer.nnodes="${NODES:-1}" \
  trainer.n_gpus_per_node="${GPUS:-8}" \
  "$@"
