"""Mistakes made by hand in public programs, and the rule that must report each of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_DROPPED = "a tower is left out of the average"
_LAST = "the last tower's gradients are applied alone"
_OWN_VARIABLES = "each tower has variables of its own"
_OWN_GRADIENT = "each copy takes the gradient of its own tower"
_FIRST_COPY = "only the copy on the first GPU is updated"
_ONE_GPU = "everything is on one GPU"
_ANOTHERS_ROWS = "a tower reads the rows of another"
_ANOTHERS_LOSSES = "a tower adds up the losses of all before it"
_NO_STEP = "the step counter is not passed"
_LAST_LOSS = "the loss of the last tower is reported"
_NO_STATISTICS = "no step runs the updates of batch normalization"
_AVERAGED_ON_GPU = "the servers' gradients are averaged on a GPU"
_CUT = "stop_gradient cuts off the loss of a tower"
_EVALUATES = "all towers but the first normalize as for evaluation"
_NOT_COLOCATED = "the backward ops are left to the placer"
_NOT_APPLIED = "a gradient is computed and never applied"
_SUM = "the gradients are added up, and not averaged"
_DIVIDED = "the losses are divided by the number of towers, too"
_TWICE = "a tower counts twice in the average"
_NO_DECAY = "all towers but the first leave out the weight decay"
_EACH_DECAYS = "each tower adds the weight decay to the sum of the losses"
_HALF_DECAY = "the weight decay is divided by the number of towers, too"
_NO_BROADCAST = "no broadcast makes the variables equal"
_ALONE = "each rank applies its own gradients"
_FIRST_GPU = "all ranks select the first GPU"
_SAME_ROWS = "all ranks read the same rows"
_SUM_OF_RANKS = "the gradients of the ranks are added up, and not averaged"
_SAVED_BY_ALL = "all ranks save checkpoints to the same path"
_LAST_DECAY = "the last tower adds the weight decay, which is then averaged"


class Mutant(NamedTuple):
    """A program with one mistake: ``new`` in place of ``old`` in one of its files."""

    program: str
    mistake: str
    file: str  # in the repository
    old: str  # occurs once in the file
    new: str
    rule: str  # must report the mistake
    message: str = ""  # in a finding of the rule on the mutant only

    def __str__(self) -> str:
        return f"{self.program}: {self.mistake}"

    def put_into(self, root: Path) -> None:
        """Make the mistake in the program's files."""
        file = root / self.file
        text = file.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times, not once: {self.old}")
        file.write_text(text.replace(self.old, self.new))


_CIFAR10 = "tutorials/image/cifar10/cifar10_multi_gpu_train.py"
_MNIST = "tensorflow_v1/examples/6_MultiGPU/multigpu_cnn.py"
_BENCHMARK = "scripts/tf_cnn_benchmarks/benchmark_cnn.py"
_VARIABLES = "scripts/tf_cnn_benchmarks/variable_mgr.py"
_GRADIENTS = "scripts/tf_cnn_benchmarks/variable_mgr_util.py"
_RANKS = "examples/tensorflow/tensorflow_mnist.py"
_KERAS_RANKS = "examples/tensorflow/tensorflow_keras_mnist.py"
_EAGER_RANKS = "examples/tensorflow2/tensorflow2_mnist.py"

MUTANTS = (
    Mutant(
        "cifar10_multi_gpu_train",
        _DROPPED,
        _CIFAR10,
        "grads = average_gradients(tower_grads)",
        "grads = average_gradients(tower_grads[:1])",
        "every-tower-counts",
        "GPU:1",
    ),
    Mutant(
        "cifar10_multi_gpu_train",
        _ANOTHERS_LOSSES,
        _CIFAR10,
        "losses = tf.get_collection('losses', scope)",
        "losses = tf.get_collection('losses')",
        "losses-apart",
        "GPU:0",
    ),
    Mutant(
        "cifar10_multi_gpu_train",
        _SUM,
        _CIFAR10,
        "grad = tf.reduce_mean(grad, 0)",
        "grad = tf.reduce_sum(grad, 0)",
        "gradients-averaged",
    ),
    Mutant(
        "EAST",
        _SUM,
        "multigpu_train.py",
        "grad = tf.reduce_mean(grad, 0)",
        "grad = tf.reduce_sum(grad, 0)",
        "gradients-averaged",
    ),
    Mutant(
        "train_ssd_network",
        _SUM,
        "deployment/model_deploy.py",
        "if num_clones > 1:\n                clone_loss",
        "if num_clones > 100:\n                clone_loss",
        "gradients-averaged",
    ),
    Mutant(
        "transformer-xl",
        _SUM,
        "tf/gpu_utils.py",
        "        return grad / len(grad_and_vars)",
        "        return grad",
        "gradients-averaged",
    ),
    Mutant(
        "cifar10_multi_gpu_train",
        _DIVIDED,
        _CIFAR10,
        "grads = opt.compute_gradients(loss)",
        "grads = opt.compute_gradients(loss / FLAGS.num_gpus)",
        "gradients-averaged",
        "counts 0.5 times",
    ),
    Mutant(
        "cifar10_multi_gpu_train",
        _TWICE,
        _CIFAR10,
        "grads = average_gradients(tower_grads)",
        "grads = average_gradients(tower_grads + tower_grads[-1:])",
        "gradients-averaged",
        "0.6667 on /device:GPU:0 and 1.333 on /device:GPU:1",
    ),
    Mutant(
        "cifar10_multi_gpu_train",
        _NO_DECAY,
        _CIFAR10,
        "losses = tf.get_collection('losses', scope)",
        "losses = tf.get_collection('losses', scope)[-1 if scope == 'tower_1/' else 0:]",
        "gradients-averaged",
        "has the coefficient 0.002 in all towers together, and 0.004 on one GPU",
    ),
    Mutant(
        "multigpu_cnn",
        _SUM,
        _MNIST,
        "grad = tf.reduce_mean(grad, 0)",
        "grad = tf.reduce_sum(grad, 0)",
        "gradients-averaged",
        "counts 2 times",
    ),
    Mutant(
        "multigpu_cnn",
        _DIVIDED,
        _MNIST,
        "compute_gradients(loss_op)",
        "compute_gradients(loss_op / num_gpus)",
        "gradients-averaged",
        "counts 0.5 times",
    ),
    Mutant(
        "multigpu_cnn",
        _TWICE,
        _MNIST,
        "tower_grads = average_gradients(tower_grads)",
        "tower_grads = average_gradients(tower_grads[:1] + tower_grads)",
        "gradients-averaged",
        "1.333 on /device:GPU:0 and 0.6667 on /device:GPU:1",
    ),
    Mutant(
        "train_ssd_network",
        _EACH_DECAYS,
        "deployment/model_deploy.py",
        "grads_and_vars.append(clone_grad)\n"
        "            # Only use regularization_losses for the first clone\n"
        "            regularization_losses = None",
        "grads_and_vars.append(clone_grad)",
        "gradients-averaged",
        "in all towers together",
    ),
    Mutant(
        "train_ssd_network",
        _DIVIDED,
        "deployment/model_deploy.py",
        "1.0 * num_clones,",
        "1.0 * num_clones ** 2,",
        "gradients-averaged",
        "counts 0.5 times",
    ),
    Mutant(
        "train_ssd_network",
        _HALF_DECAY,
        "deployment/model_deploy.py",
        "all_losses.append(regularization_loss)",
        "all_losses.append(regularization_loss / num_clones)",
        "gradients-averaged",
        "in all towers together",
    ),
    Mutant(
        "EAST",
        _DIVIDED,
        "multigpu_train.py",
        "opt.compute_gradients(total_loss)",
        "opt.compute_gradients(total_loss / len(gpus))",
        "gradients-averaged",
        "counts 0.5 times",
    ),
    Mutant(
        "EAST",
        _TWICE,
        "multigpu_train.py",
        "grads = average_gradients(tower_grads)",
        "grads = average_gradients(tower_grads + tower_grads[-1:])",
        "gradients-averaged",
        "0.6667 on /device:GPU:0 and 1.333 on /device:GPU:1",
    ),
    Mutant(
        "EAST",
        _NO_DECAY,
        "multigpu_train.py",
        "+ tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)",
        "+ ([] if reuse_variables else tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))",
        "gradients-averaged",
        "in all towers together",
    ),
    Mutant(
        "transformer-xl",
        _TWICE,
        "tf/train_gpu.py",
        "average_grads_and_vars(tower_grads_and_vars)",
        "average_grads_and_vars(tower_grads_and_vars + tower_grads_and_vars[-1:])",
        "gradients-averaged",
        "0.6667 on /device:GPU:0 and 1.333 on /device:GPU:1",
    ),
    Mutant(
        "transformer-xl",
        _DIVIDED,
        "tf/train_gpu.py",
        "grads = tf.gradients(loss, all_vars)",
        "grads = tf.gradients(loss / FLAGS.num_core_per_host, all_vars)",
        "gradients-averaged",
        "counts 0.5 times",
    ),
    Mutant(
        "multigpu_cnn",
        _ANOTHERS_ROWS,
        _MNIST,
        "_x = X[i * batch_size: (i+1) * batch_size]",
        "_x = X[0 * batch_size: (0+1) * batch_size]",
        "inputs-distinct",
        "GPU:1",
    ),
    Mutant(
        "multigpu_cnn",
        _LAST,
        _MNIST,
        "tower_grads = average_gradients(tower_grads)",
        "tower_grads = grads",
        "every-tower-counts",
        "GPU:0",
    ),
    Mutant(
        "multigpu_cnn",
        _ONE_GPU,
        _MNIST,
        "assign_to_device('/gpu:{}'.format(i), ps_device='/cpu:0')",
        "assign_to_device('/gpu:{}'.format(0), ps_device='/cpu:0')",
        "no-idle-device",
        "GPU:1",
    ),
    Mutant(
        "train_ssd_network",
        _OWN_VARIABLES,
        "deployment/model_deploy.py",
        "with tf.variable_scope(tf.get_variable_scope(),\n"
        "                                           reuse=True if i > 0 else None):",
        "with tf.variable_scope(\n"
        "                            'clone_%d' % i if i > 0 else tf.get_variable_scope()):",
        "variables-shared",
        "clone_1/",
    ),
    Mutant(
        "train_ssd_network",
        _NO_STEP,
        "train_ssd_network.py",
        "apply_gradients(clones_gradients,\n"
        "                                                 global_step=global_step)",
        "apply_gradients(\n            clones_gradients)",
        "one-update",
        "global_step",
    ),
    Mutant(
        "train_image_classifier",
        _NO_STATISTICS,
        "train_image_classifier.py",
        "update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS, first_clone_scope)",
        "update_ops = []",
        "update-ops-run",
        "clone_0/",
    ),
    Mutant(
        "train_image_classifier",
        _ONE_GPU,
        "deployment/model_deploy.py",
        "device += '/device:GPU:%d' % clone_index",
        "device += '/device:GPU:0'",
        "no-idle-device",
        "GPU:1",
    ),
    Mutant(
        "train_image_classifier",
        _CUT,
        "deployment/model_deploy.py",
        "      all_losses.append(clone_loss)",
        "      all_losses.append(\n"
        "          clone_loss if regularization_losses else tf.stop_gradient(clone_loss))",
        "every-tower-counts",
        "GPU:1",
    ),
    Mutant(
        "train_elmo",
        _DROPPED,
        "bilm/training.py",
        "grads = average_gradients(tower_grads, options",
        "grads = average_gradients(tower_grads[:1], options",
        "every-tower-counts",
        "GPU:1",
    ),
    Mutant(
        "train_elmo",
        _LAST_LOSS,
        "bilm/training.py",
        "train_perplexity += loss",
        "train_perplexity = loss",
        "loss-of-all-towers",
        "GPU:1",
    ),
    Mutant(
        "tf_cnn_benchmarks",
        _LAST_DECAY,
        _BENCHMARK,
        "total_loss += len(self.devices) * weight_decay * l2_loss",
        "total_loss += weight_decay * l2_loss",
        "gradients-averaged",
        "has the coefficient 2e-05 in all towers together, and 4e-05 on one GPU",
    ),
    Mutant(
        "tf_cnn_benchmarks",
        _SUM,
        _GRADIENTS,
        "grad = tf.scalar_mul(1.0 / len(grads), grad)",
        "grad = tf.scalar_mul(1.0, grad)",
        "gradients-averaged",
        "counts 2 times",
    ),
    Mutant(
        "tf_cnn_benchmarks",
        _DROPPED,
        _VARIABLES,
        "aggregate_gradients_using_copy_with_variable_colocation(\n            device_grads,",
        "aggregate_gradients_using_copy_with_variable_colocation(\n            device_grads[:1],",
        "every-tower-counts",
        "GPU:1",
    ),
    Mutant(
        "tf_cnn_benchmarks, a parameter server",
        _AVERAGED_ON_GPU,
        _GRADIENTS,
        "with tf.device(var.device):",
        "with tf.device('/gpu:0'):",
        "averaging-on-host",
        "GPU:0",
    ),
    Mutant(
        "tf_cnn_benchmarks, a parameter server",
        _LAST_LOSS,
        _BENCHMARK,
        "average_loss = tf.reduce_mean(losses)",
        "average_loss = tf.reduce_mean(losses[-1:])",
        "loss-of-all-towers",
        "GPU:1",
    ),
    Mutant(
        "tf_cnn_benchmarks, replicated",
        _OWN_GRADIENT,
        _VARIABLES,
        "return self.benchmark_cnn.devices, reduced_device_grads",
        "return self.benchmark_cnn.devices, device_grads",
        "variables-shared",
        "v1/cg/conv0",
    ),
    Mutant(
        "tf_cnn_benchmarks, replicated",
        _FIRST_COPY,
        _BENCHMARK,
        "for d, device in enumerate(apply_gradient_devices):",
        "for d, device in enumerate(apply_gradient_devices[:1]):",
        "variables-shared",
        "v1/cg/conv0",
    ),
    Mutant(
        "finetune-transformer-lm",
        _DROPPED,
        "train.py",
        "grads = average_grads(gpu_grads)",
        "grads = average_grads(gpu_grads[:1])",
        "every-tower-counts",
        "GPU:1",
    ),
    Mutant(
        "finetune-transformer-lm",
        _ANOTHERS_ROWS,
        "train.py",
        "for i, xs in enumerate(zip(*xs)):\n        do_reuse",
        "for i, xs in enumerate([next(zip(*xs))] * n_gpu):\n        do_reuse",
        "inputs-distinct",
        "GPU:1",
    ),
    Mutant(
        "transformer-xl",
        _DROPPED,
        "tf/train_gpu.py",
        "average_grads_and_vars(tower_grads_and_vars)",
        "average_grads_and_vars(tower_grads_and_vars[:1])",
        "every-tower-counts",
        "GPU:1",
    ),
    Mutant(
        "transformer-xl",
        _ANOTHERS_ROWS,
        "tf/train_gpu.py",
        "is_training=True,\n          inp=inputs[i],\n          tgt=labels[i],",
        "is_training=True,\n          inp=inputs[i],\n          tgt=labels[0],",
        "inputs-distinct",
        "GPU:1",
    ),
    Mutant(
        "xlnet",
        _DROPPED,
        "train_gpu.py",
        "average_grads_and_vars(tower_grads_and_vars)",
        "average_grads_and_vars(tower_grads_and_vars[:1])",
        "every-tower-counts",
        "GPU:1",
    ),
    Mutant(
        "xlnet",
        _LAST_LOSS,
        "train_gpu.py",
        "loss = tf.add_n(tower_losses) / len(tower_losses)",
        "loss = tower_losses[-1]",
        "loss-of-all-towers",
        "GPU:1",
    ),
    Mutant(
        "cifar10-resnet",
        _LAST,
        "tensorpack/graph_builder/training.py",
        "self.grads = aggregate_grads_colocate(grad_list)",
        "self.grads = grad_list[-1]",
        "every-tower-counts",
        "GPU:0",
    ),
    Mutant(
        "cifar10-resnet",
        _ONE_GPU,
        "tensorpack/graph_builder/training.py",
        "device = devices[idx] if devices is not None",
        "device = devices[0] if devices is not None",
        "no-idle-device",
        "GPU:1",
    ),
    Mutant(
        "EAST",
        _ANOTHERS_ROWS,
        "multigpu_train.py",
        "itms = input_training_masks_split[i]",
        "itms = input_training_masks_split[0]",
        "inputs-distinct",
        "GPU:1",
    ),
    Mutant(
        "EAST",
        _NO_STEP,
        "multigpu_train.py",
        "opt.apply_gradients(grads, global_step=global_step)",
        "opt.apply_gradients(grads)",
        "one-update",
        "global_step",
    ),
    Mutant(
        "EAST",
        _EVALUATES,
        "multigpu_train.py",
        "model.model(images, is_training=True)",
        "model.model(images, is_training=not reuse_variables)",
        "towers-alike",
        "GPU:1",
    ),
    Mutant(
        "stylegan",
        _OWN_GRADIENT,
        "dnnlib/tflib/optimizer.py",
        "g = nccl_ops.all_sum(g)",
        "g = list(g)",
        "variables-shared",
        "G_synthesis_2/4x4",
    ),
    Mutant(
        "stylegan",
        _FIRST_COPY,
        "dnnlib/tflib/optimizer.py",
        "in enumerate(dev_grads.items()):",
        "in enumerate(list(dev_grads.items())[:1]):",
        "variables-shared",
        "G_synthesis_2/4x4",
    ),
    Mutant(
        "nmt",
        _NOT_COLOCATED,
        "nmt/model.py",
        "colocate_gradients_with_ops=hparams.colocate_gradients_with_ops)",
        "colocate_gradients_with_ops=False)",
        "gradients-colocated",
        "GPU:1",
    ),
    Mutant(
        "nmt",
        _NO_STEP,
        "nmt/model.py",
        "zip(clipped_grads, params), global_step=self.global_step)",
        "zip(clipped_grads, params))",
        "one-update",
    ),
    Mutant(
        "nmt",
        _NOT_APPLIED,
        "nmt/model.py",
        "zip(clipped_grads, params), global_step=self.global_step)",
        "zip(clipped_grads[1:], params[1:]), global_step=self.global_step)",
        "trainables-trained",
        "embedding_encoder",
    ),
    Mutant(
        "tensorflow_mnist, ranks",
        _NO_BROADCAST,
        _RANKS,
        "hvd.BroadcastGlobalVariablesHook(0),",
        "",
        "replicas-in-sync",
        "no broadcast makes them equal",
    ),
    Mutant(
        "tensorflow_mnist, ranks",
        _SUM_OF_RANKS,
        _RANKS,
        "else hvd.Average,",
        "else hvd.Sum,",
        "gradients-averaged",
    ),
    Mutant(
        "tensorflow_mnist, ranks",
        _SAVED_BY_ALL,
        _RANKS,
        "'./checkpoints' if hvd.rank() == 0 else None",
        "'./checkpoints'",
        "files-apart",
        "ranks 0 and 1 save checkpoints to",
    ),
    Mutant(
        "tensorflow_keras_mnist, ranks",
        _ALONE,
        _KERAS_RANKS,
        "opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1)",
        "",
        "replicas-in-sync",
        "from its own results",
    ),
    Mutant(
        "tensorflow_keras_mnist, ranks",
        _SAME_ROWS,
        _KERAS_RANKS,
        "batch_size=batch_size,",
        "batch_size=batch_size, shuffle=False,",
        "inputs-distinct",
    ),
    Mutant(
        "tensorflow_keras_mnist, ranks",
        _SAVED_BY_ALL,
        _KERAS_RANKS,
        "if hvd.rank() == 0:\n    callbacks",
        "if True:\n    callbacks",
        "files-apart",
        "ranks 0 and 1 save checkpoints to",
    ),
    Mutant(
        "tensorflow2_mnist, ranks",
        _ALONE,
        _EAGER_RANKS,
        "tape = hvd.DistributedGradientTape(tape)",
        "",
        "replicas-in-sync",
        "from its own results",
    ),
    Mutant(
        "tensorflow2_mnist, ranks",
        _FIRST_GPU,
        _EAGER_RANKS,
        "gpus[hvd.local_rank()]",
        "gpus[0]",
        "no-idle-device",
    ),
    Mutant(
        "glow, ranks",
        _NO_BROADCAST,
        "model.py",
        "sess.run(hvd.broadcast_global_variables(0))",
        "",
        "replicas-in-sync",
        "no broadcast makes them equal",
    ),
    Mutant(
        "glow, ranks",
        _ALONE,
        "tfops.py",
        "return hvd.mpi_ops._allreduce(x)",
        "return x",
        "replicas-in-sync",
        "from its own results",
    ),
    Mutant(
        "gpt-2, ranks",
        _ALONE,
        "train-horovod.py",
        "train_op = opt.minimize(loss, var_list=train_vars)",
        "train_op = opt.apply_gradients(zip(tf.gradients(loss, train_vars), train_vars))",
        "replicas-in-sync",
        "from its own results",
    ),
    Mutant(
        "gpt-2, ranks",
        _SAME_ROWS,
        "train-horovod.py",
        "data_sampler = Sampler(chunks)",
        "data_sampler = Sampler(chunks, seed=1)",
        "inputs-distinct",
    ),
    Mutant(
        "cosmoflow, ranks",
        _ALONE,
        "utils/optimizers.py",
        "opt = hvd.DistributedOptimizer(opt)",
        "pass",
        "replicas-in-sync",
        "from its own results",
    ),
    Mutant(
        "cosmoflow, ranks",
        _SUM_OF_RANKS,
        "utils/optimizers.py",
        "hvd.DistributedOptimizer(opt)",
        "hvd.DistributedOptimizer(opt, op=hvd.Sum)",
        "gradients-averaged",
    ),
    Mutant(
        "cosmoflow, ranks",
        _SAVED_BY_ALL,
        "train.py",
        "if dist.rank == 0:\n        callbacks.append(tf.keras.callbacks.ModelCheckpoint",
        "if True:\n        callbacks.append(tf.keras.callbacks.ModelCheckpoint",
        "files-apart",
        "ranks 0 and 1 save checkpoints to",
    ),
    Mutant(
        "tf_cnn_benchmarks, ranks",
        _NO_BROADCAST,
        _BENCHMARK,
        "bcast_global_variables_op = hvd.broadcast_global_variables(0)",
        "bcast_global_variables_op = None",
        "replicas-in-sync",
        "no broadcast makes them equal",
    ),
    Mutant(
        "tf_cnn_benchmarks, ranks",
        _FIRST_GPU,
        _BENCHMARK,
        "config.gpu_options.visible_device_list = str(hvd.local_rank())",
        "config.gpu_options.visible_device_list = '0'",
        "no-idle-device",
    ),
)
