"""Other people's programs for several GPUs, and what is typed to verify each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from real import made_up


class Program(NamedTuple):
    """A program as it stands in a public repository."""

    name: str
    repository: str
    commit: str
    typed: str  # after `placement-checks verify`
    folder: str = "."  # where it is typed, in the repository
    data: Callable[[Path], None] = made_up.nothing
    paths: tuple[str, ...] = (".",)  # what is taken of the repository
    environment: Mapping[str, str] = {}  # `{root}` is the folder of the repository
    packages: tuple[str, ...] = ()  # what it imports beside TensorFlow and what comes with it
    kept: str | None = None  # a file that the program deletes when it starts
    numbers: bool = False  # whether it is small enough to be run on CPUs
    status: int = 1  # of the command
    broken: str = ""  # the rules that it breaks
    said: str = ""  # on standard error


_BENCHMARK = "tf_cnn_benchmarks.py --v1 -- --num_gpus={gpus} --batch_size=32 --model=resnet50"
_BENCHMARKS = Program(
    name="tf_cnn_benchmarks",
    repository="tensorflow/benchmarks",
    commit="8fb79079265933ad39bea628b777af662f5bf15d",
    folder="scripts/tf_cnn_benchmarks",
    typed=_BENCHMARK,
    broken="variables-on-host averaging-on-host",
)

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
        said="tf.contrib.nn.deprecated_flipped_softmax_cross_entropy_with_logits is not in",
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
        said="look at util.py:94",
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
        status=0,
        broken="",
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
        broken="variables-on-host",
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
        name="pointnet2",
        repository="charlesq34/pointnet2",
        commit="42926632a3c33461aebfbee2d829098b30a23aaa",
        # Python 2's division of whole numbers, 32 / 2, gave a whole number.
        typed="train_multi_gpu.py --v1 --let DEVICE_BATCH_SIZE=16 -- "
        "--num_gpus={gpus} --model=pointnet_cls_basic",
        data=made_up.point_clouds,
        status=2,
        said="Python 2",
    ),
    Program(
        name="improved_wgan_training",
        repository="igul222/improved_wgan_training",
        commit="fa66c574a54c4916d27c55441d33753dcc78f6bc",
        typed="gan_64x64.py --v1 --let N_GPUS={gpus} --let DATA_DIR='data'",
        status=2,
        said="Python 2",
        packages=("sklearn",),
    ),
)
