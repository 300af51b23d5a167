"""Public programs for several GPUs, and the arguments that verify each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from public_programs import made_up


class Program(NamedTuple):
    """A program in a public repository."""

    name: str
    repository: str
    commit: str
    typed: str  # after `placement-checks verify`
    folder: str = "."  # the directory of the command, in the repository
    data: Callable[[Path], None] = made_up.nothing
    paths: tuple[str, ...] = (".",)  # the copied files of the repository
    environment: Mapping[str, str] = {}  # `{root}` is the folder of the repository
    packages: tuple[str, ...] = ()  # its imports besides TensorFlow and its dependencies
    needs_keras_2: bool = False  # as a part of TensorFlow, which has it up to 2.15
    kept: str | None = None  # a file that the program deletes when it starts
    numbers: bool = False  # whether it is small enough to be run on CPUs
    status: int = 1  # of the command
    broken: str = ""  # the rules that it breaks
    message: str = ""  # on standard error


_BENCHMARK = "tf_cnn_benchmarks.py --v1 -- --num_gpus={gpus} --batch_size=32 --model=resnet50"
_BENCHMARKS = Program(
    name="tf_cnn_benchmarks",
    repository="tensorflow/benchmarks",
    commit="8fb79079265933ad39bea628b777af662f5bf15d",
    folder="scripts/tf_cnn_benchmarks",
    typed=_BENCHMARK,
    broken="variables-on-host averaging-on-host",
)

_HOROVOD = Program(
    name="",
    repository="horovod/horovod",
    commit="2626dc87a3a8eb8fb7d2216198ce45bce0f9e65a",
    paths=("examples",),
    typed="",
    data=made_up.digits_of_keras,
    status=0,
)


def _home(folder: str) -> Mapping[str, str]:
    """The environment with a home directory that has data and modules that Python imports."""
    return {"HOME": folder, "PYTHONPATH": folder}


PROGRAMS = (
    Program(
        name="cifar10_multi_gpu_train",
        repository="zm931116/cifar10",  # a copy of tensorflow/models, of May 2018
        commit="7d3ef79c9b2c5421f6c441354021d2b3d7815490",
        paths=("tutorials/image/cifar10",),
        folder="tutorials/image/cifar10",
        typed="cifar10_multi_gpu_train.py --v1 -- "
        "--num_gpus={gpus} --data_dir=data --train_dir=train",
        data=made_up.cifar10_binary,
        numbers=True,
        kept="train/model.ckpt-700000.index",
        broken="loss-of-all-towers",
    ),
    Program(
        name="inception, flowers_train",
        repository="zm931116/cifar10",
        commit="7d3ef79c9b2c5421f6c441354021d2b3d7815490",
        paths=("research/inception",),
        folder="research/inception",
        typed="inception/flowers_train.py --v1 -- --train_dir=train --data_dir=data "
        "--batch_size=32 --num_gpus={gpus} --initial_learning_rate=0.001",
        data=made_up.inception_flowers,
        environment={"PYTHONPATH": "{root}/research/inception"},
        kept="train/model.ckpt-700000.index",
        status=2,
        message="tf.contrib.nn.deprecated_flipped_softmax_cross_entropy_with_logits is not in",
    ),
    Program(
        name="ptb_word_lm",
        repository="zm931116/cifar10",
        commit="7d3ef79c9b2c5421f6c441354021d2b3d7815490",
        paths=("tutorials/rnn/ptb",),
        folder="tutorials/rnn/ptb",
        typed="ptb_word_lm.py --v1 -- --data_path=data --model=small --num_gpus={gpus} "
        "--rnn_mode=block",
        data=made_up.penn_treebank,
        status=2,
        message="look at util.py:94",
    ),
    Program(
        name="multigpu_cnn",
        repository="aymericdamien/TensorFlow-Examples",
        commit="6dcbe14649163814e72a22a999f20c5e247ce988",
        folder="tensorflow_v1/examples/6_MultiGPU",
        typed="multigpu_cnn.py --v1 --let num_gpus={gpus}",
        data=made_up.mnist_in_tmp,
        numbers=True,
        status=0,
    ),
    Program(
        name="train_ssd_network",
        repository="balancap/SSD-Tensorflow",
        commit="e0e3104d3a2cc5d830fad041d4e56ebcf84caac3",
        typed="train_ssd_network.py --v1 -- --train_dir=logs --dataset_dir=tfrecords "
        "--dataset_name=pascalvoc_2012 --dataset_split_name=train --model_name=ssd_300_vgg "
        "--save_summaries_secs=60 --save_interval_secs=600 --weight_decay=0.0005 "
        "--optimizer=adam --learning_rate=0.001 --batch_size=32 --num_clones={gpus}",
        data=made_up.pascal_voc,
        paths=(".", ":(exclude)checkpoints"),
        broken="averaging-on-host",
    ),
    Program(
        name="train_elmo",
        repository="allenai/bilm-tf",
        commit="7cffee2b0986be51f5e2a747244836e1047657f4",
        typed="bin/train_elmo.py --v1 --let n_gpus={gpus} -- "
        "--train_prefix=sentences/* --vocab_file=vocabulary.txt --save_dir=save",
        data=made_up.sentences,
        environment={"PYTHONPATH": "{root}"},
        broken="no-fallback variables-on-host",
    ),
    _BENCHMARKS._replace(
        name="tf_cnn_benchmarks, a parameter server",
        typed=f"{_BENCHMARK} --variable_update=parameter_server --local_parameter_device=cpu",
        status=0,
        broken="",
    ),
    _BENCHMARKS._replace(
        name="tf_cnn_benchmarks, replicated",
        typed=f"{_BENCHMARK} --variable_update=replicated",
        broken="gradients-averaged",
    ),
    _BENCHMARKS,
    Program(
        name="finetune-transformer-lm",
        repository="openai/finetune-transformer-lm",
        commit="a69b5c43b0452462890bca8ff92fb75dee9290cf",
        typed="train.py --v1 -- --dataset rocstories --desc rocstories --submit --analysis "
        "--data_dir data --n_gpu {gpus}",
        data=made_up.stories,
        paths=(".", ":(exclude)model/*.npy"),
        broken="variables-on-host averaging-on-host",
        packages=("sklearn", "joblib", "ftfy", "tqdm"),
    ),
    Program(
        name="transformer-xl",
        repository="kimiyoung/transformer-xl",
        commit="44781ed21dbaec88b280f74d9ae2877f52b492a5",
        folder="tf",
        typed="train_gpu.py --v1 -- --data_dir=data --record_info_dir=data "
        "--corpus_info_path=data/corpus-info.json --model_dir=EXP-wt103 --div_val=1 "
        "--untie_r=True --proj_share_all_but_first=True --n_layer=16 --d_model=410 "
        "--d_embed=410 --n_head=10 --d_head=41 --d_inner=2100 --dropout=0.1 --dropatt=0.0 "
        "--learning_rate=0.00025 --warmup_steps=0 --train_steps=400000 --tgt_len=150 "
        "--mem_len=150 --train_batch_size=60 --num_core_per_host={gpus} --iterations=200 "
        "--save_steps=4000",
        data=made_up.wikitext,
        broken="variables-on-host averaging-on-host",
    ),
    Program(
        name="xlnet",
        repository="zihangdai/xlnet",
        commit="bbaa3a6fa0b3a2ee694e8cf66167434f9eca9660",
        typed="train_gpu.py --v1 -- --record_info_dir=data --model_dir=train "
        "--train_batch_size=16 --seq_len=512 --reuse_len=256 --mem_len=384 --perm_size=256 "
        "--bi_data=False --n_layer=12 --d_model=768 --d_embed=768 --n_head=12 --d_head=64 "
        "--d_inner=3072 --untie_r=True --mask_alpha=6 --mask_beta=1 --num_predict=85 "
        "--num_core_per_host={gpus}",
        data=made_up.pretraining_records,
        packages=("sentencepiece",),
        broken="variables-on-host averaging-on-host",
    ),
    Program(
        name="nmt",
        repository="tensorflow/nmt",
        commit="0be864257a76c151eef20ea689755f08bc1faf4e",
        typed="nmt.nmt --v1 -- --src=vi --tgt=en --vocab_prefix=nmt/testdata/iwslt15.vocab.100 "
        "--train_prefix=nmt/testdata/iwslt15.tst2013.100 "
        "--dev_prefix=nmt/testdata/iwslt15.tst2013.100 "
        "--test_prefix=nmt/testdata/iwslt15.tst2013.100 --out_dir=model{gpus} "
        "--num_train_steps=12000 --num_layers=2 --num_units=128 --num_gpus={gpus}",
        status=0,
    ),
    Program(
        name="cifar10-resnet",
        repository="tensorpack/tensorpack",
        commit="1547a54e8546494614ca31c984a1bfd1d0e24b77",
        folder="examples/ResNet",
        typed="cifar10-resnet.py --v1 -- --gpu {gpu_list} --logdir=log{gpus}",
        data=made_up.cifar10_pickled,
        environment={
            "PYTHONPATH": "{root}",
            "TENSORPACK_DATASET": "{root}/examples/ResNet/tensorpack_data",
        },
        broken="variables-on-host averaging-on-host",
        packages=("cv2", "msgpack_numpy", "psutil", "tabulate", "termcolor", "tqdm", "zmq"),
    ),
    Program(
        name="train_image_classifier",
        repository="Zehaos/MobileNet",
        commit="bb02b10fbd211d717f7a207245feac229f6bb23e",
        typed="train_image_classifier.py --v1 -- --train_dir=train --dataset_name=flowers "
        "--dataset_split_name=train --dataset_dir=data --model_name=resnet_v1_50 "
        "--batch_size=32 --optimizer=rmsprop --rmsprop_decay=0.9 --opt_epsilon=1.0 "
        "--learning_rate=0.1 --momentum=0.9 --weight_decay=0.0001 --num_clones={gpus}",
        data=made_up.flowers,
        broken="averaging-on-host",
        packages=("easydict",),
    ),
    Program(
        name="EAST",
        repository="argman/EAST",
        commit="dca414de39a3a4915a019c9a02c1832a31cdd0ca",
        typed="multigpu_train.py --v1 -- --gpu_list={gpu_list} --input_size=512 "
        "--batch_size_per_gpu=4 --checkpoint_path=train/ --training_data_path=data/ "
        "--geometry=RBOX --learning_rate=0.0001 --num_readers=2",
        data=made_up.texts_in_pictures,
        kept="train/model.ckpt-700000.index",
        broken="variables-on-host averaging-on-host loss-of-all-towers",
        packages=("cv2", "matplotlib", "scipy", "shapely"),
    ),
    Program(
        name="stylegan",
        repository="NVlabs/stylegan",
        commit="1e0d5c781384ef12b50ef20a62fee5d78b38e88f",
        typed="train.py --v1 --let submit_config.num_gpus={gpus}",
        data=made_up.faces,
        packages=("PIL", "requests"),
        broken="variables-on-host trainables-trained",
    ),
    Program(
        name="pixel-cnn",
        repository="openai/pixel-cnn",
        commit="bbc15688dd37934a12c2759cf2b34975e15901d9",
        typed="train.py --v1 --limit 900 -- --data_dir=data --save_dir=save --nr_gpu={gpus}",
        data=made_up.cifar10_arrays,
        broken="variables-on-host averaging-on-host",
        packages=("matplotlib",),
    ),
    Program(
        name="DAGAN",
        repository="AntreasAntoniou/DAGAN",
        commit="6f1a5035df62da8c1459fd7eca61cf74d4a1b4a4",
        typed="train_omniglot_dagan.py --v1 --limit 900 -- --batch_size 32 "
        "--generator_inner_layers 3 --discriminator_inner_layers 5 --num_generations 64 "
        "--experiment_title omniglot_dagan_experiment_default --num_of_gpus {gpus} "
        "--z_dim 100 --dropout_rate_value 0.5",
        data=made_up.omniglot,
        broken="variables-on-host losses-apart loss-of-all-towers trainables-trained",
        packages=("scipy", "tqdm"),
    ),
    Program(
        name="monodepth",
        repository="mrharicot/monodepth",
        commit="b76bee4bd12610b482163871b7ff93e931cb5331",
        typed="monodepth_main.py --v1 -- --mode train --model_name my_model --data_path data/ "
        "--filenames_file data/filenames.txt --log_directory log --num_gpus {gpus}",
        data=made_up.stereo_pairs,
        broken="no-fallback variables-on-host",
    ),
    Program(
        name="DDFlow",
        repository="ppliuboy/DDFlow",
        commit="084279454ec50db42866ddfca63d7cf4b8abdbc1",
        typed="main.py --v1 --let self.num_gpus={gpus}",
        data=made_up.optical_flow,
        paths=(".", ":(exclude)images", ":(exclude)models", ":(exclude)dataset"),
        broken="no-fallback no-idle-device variables-on-host",
        packages=("cv2", "matplotlib", "scipy"),
    ),
    Program(
        name="tensorflow_multigpu_imagenet",
        repository="arashno/tensorflow_multigpu_imagenet",
        commit="11bed40992e5704f1e55d2d1e23ff2d8af233e9e",
        typed="run.py --v1 -- train --architecture resnet50 --path_prefix pictures "
        "--train_info train.txt --optimizer adam --num_epochs 50 --log_dir log "
        "--num_gpus {gpus}",
        data=made_up.imagenet_in_folders,
        paths=(".", ":(exclude)*.txt"),
        kept="log/snapshot-1.index",
        broken="inputs-distinct loss-of-all-towers",
    ),
    Program(
        name="nematus",
        repository="EdinburghNLP/nematus",
        commit="49d050863bc9644b8c0a9d9ab6e54ccd30f927dd",
        folder="test",
        typed="../nematus/train.py --v1 -- --model models/model.npz "
        "--datasets data/corpus.en data/corpus.de "
        "--dictionaries data/vocab.json data/vocab.json --n_words_src 10000 --n_words 10000 "
        "--model_type transformer --embedding_size 128 --tie_encoder_decoder_embeddings "
        "--tie_decoder_embeddings --state_size 128 --transformer_enc_depth 2 "
        "--transformer_dec_depth 2 --transformer_ffn_hidden_size 256 "
        "--loss_function per-token-cross-entropy --clip_c 0.0 --label_smoothing 0.1 "
        "--optimizer adam --adam_beta1 0.9 --adam_beta2 0.98 --adam_epsilon 1e-09 "
        "--learning_schedule transformer --warmup_steps 4000 --maxlen 100 --batch_size 300 "
        "--token_batch_size 3000 --disp_freq 500 --finish_after 500",
        broken="variables-on-host averaging-on-host",
    ),
    Program(
        name="TensorFlow-MultiGPU",
        repository="SeonbeomKim/TensorFlow-MultiGPU",
        commit="2295b5cbc4bc60133791ec46ee9055f2d57694b1",
        typed="multi_gpu.Placeholder.Trainer --v1 -- --gpu_list={gpu_list} --save_path=save",
        data=made_up.mnist,
        broken="variables-on-host averaging-on-host",
        packages=("tqdm",),
    ),
    Program(
        name="progressive_growing_of_gans",
        repository="tkarras/progressive_growing_of_gans",
        commit="2504c3f3cb98ca58751610ad61fa1097313152bd",
        typed="train.py --v1 --let num_gpus={gpus}",
        data=made_up.celebrities,
        broken="trainables-trained",
        packages=("PIL", "scipy"),
    ),
    Program(
        name="TensorflowFramework",
        repository="vahidk/TensorflowFramework",
        commit="a9377d0dd8f5ac93e810876fbe8987990e3c728f",
        typed="trainer.py --v1 -- --config=configs/mnist.json '--override={\"num_gpus\": {gpus}}'",
        data=made_up.mnist_in_data,
        status=2,
        message="'Conv2D' object has no attribute 'apply'",
        packages=("matplotlib",),
    ),
    Program(
        name="iaf",
        repository="openai/iaf",
        commit="ad33fe4872bf6e4b4f387e709a625376bb8b0d9d",
        typed="tf_train.py --v1 -- --logdir log --hpconfig depth=1,num_blocks=20,kl_min=0.1,"
        "learning_rate=0.002,batch_size=32 --num_gpus {gpus} --mode train",
        status=2,
        message="cifar10_data",
        packages=("tqdm",),
    ),
    Program(
        name="revnet-public",
        repository="renmengye/revnet-public",
        commit="5486f6147bb1b61577e8be5db74461b07256bd3d",
        typed="run_imagenet_train.py --v1 -- --model resnet-50 --num_gpu {gpus}",
        data=made_up.records_of_imagenet,
        environment={"CUDA_VISIBLE_DEVICES": "0,1"},
        status=2,
        message="cifar_configs",
        packages=("tqdm",),
    ),
    Program(
        name="deep_gcns",
        repository="lightaime/deep_gcns",
        commit="c14b0890cded947385d4e083e14efdc2912fa7af",
        folder="sem_seg",
        typed="train.py --v1 -- --num_gpu {gpus} --num_layers 4 --num_point 256 --batch_size 2",
        data=made_up.point_rooms,
        numbers=True,
        broken="loss-of-all-towers no-fallback",
    ),
    Program(
        name="pointnet2",
        repository="charlesq34/pointnet2",
        commit="42926632a3c33461aebfbee2d829098b30a23aaa",
        # Python 2's division of whole numbers, 32 / 2, gave a whole number.
        typed="train_multi_gpu.py --v1 --let DEVICE_BATCH_SIZE=16 -- "
        "--num_gpus={gpus} --model=pointnet_cls_basic",
        data=made_up.point_clouds,
        status=2,
        message="'xrange' is not defined",
    ),
    Program(
        name="improved_wgan_training",
        repository="igul222/improved_wgan_training",
        commit="fa66c574a54c4916d27c55441d33753dcc78f6bc",
        typed="gan_64x64.py --v1 --let N_GPUS={gpus} --let DATA_DIR='data'",
        status=2,
        message="Python 2",
        packages=("sklearn",),
    ),
    _HOROVOD._replace(
        name="tensorflow_mnist, ranks",
        folder="examples/tensorflow",
        environment=_home("{root}/examples/tensorflow/made_up"),
        typed="tensorflow_mnist.py --v1 --horovod 2",
    ),
    _HOROVOD._replace(
        name="tensorflow_keras_mnist, ranks",
        folder="examples/tensorflow",
        environment=_home("{root}/examples/tensorflow/made_up"),
        typed="tensorflow_keras_mnist.py --v1 --horovod 2",
    ),
    _HOROVOD._replace(
        name="tensorflow2_mnist, ranks",
        folder="examples/tensorflow2",
        environment=_home("{root}/examples/tensorflow2/made_up"),
        typed="tensorflow2_mnist.py --horovod 2",
        needs_keras_2=True,
    ),
    Program(
        name="glow, ranks",
        repository="openai/glow",
        commit="91b2c577a5c110b2b38761fc56d81f7d87f077c1",
        environment=_home("{root}/made_up"),
        typed="train.py --v1 --horovod 2 -- --depth 1 --width 64 --gradient_checkpointing 0",
        data=made_up.cifar10_of_keras,
        packages=("scipy", "PIL"),
        status=0,
        needs_keras_2=True,
    ),
    Program(
        name="gpt-2, ranks",
        repository="nshepperd/gpt-2",
        commit="b7cda3f48dd8543bc53d0dd6dee69b5cb386fb21",
        environment={"PYTHONPATH": "{root}/src"},
        typed="train-horovod.py --v1 --horovod 2 -- --dataset tokens.npz",
        data=made_up.small_language_model,
        packages=("fire", "regex", "toposort", "tqdm"),
        status=0,
    ),
    Program(
        name="cosmoflow, ranks",
        repository="sparticlesteve/cosmoflow-benchmark",
        commit="559eafb99ae66bbad81835d81ae4cd0402eb6119",
        typed="train.py --horovod 2 -- configs/small.yaml --distributed --rank-gpu",
        data=made_up.small_cosmology,
        packages=("yaml", "pandas"),
        broken="inputs-distinct randomness-apart",
        needs_keras_2=True,
    ),
    _BENCHMARKS._replace(
        name="tf_cnn_benchmarks, ranks",
        typed="tf_cnn_benchmarks.py --v1 --horovod 2 -- --variable_update=horovod --num_gpus=1 "
        "--batch_size=32 --model=resnet50",
        broken="gradients-averaged",
    ),
)
