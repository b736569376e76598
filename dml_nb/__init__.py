"""Deep metric learning as a book that runs: every loss derived, proved, tested and fast

Modules:

- `dml_nb.cli.base`: `dml`: what all its commands share: help, one line for a mistake, checks before any work.
- `dml_nb.cli.experiments`: `dml compare` and `dml bench`: losses against each other, in accuracy and in time.
- `dml_nb.cli.models`: `dml train`, `evaluate` and `embed`: from a folder of pictures to vectors.
- `dml_nb.cli.papers`: `dml reproduce`: the tables and figures of the five papers.
- `dml_nb.cli.search`: `dml index`, `search` and `browse`: find pictures that look like a picture.
- `dml_nb.core`: Unit rows, similarities in full precision, and labels, whatever they come as.
- `dml_nb.data.benchmarks`: The published sets of the field, read as their authors laid them out
- `dml_nb.data.classes`: One function decides the class of a picture in a folder or a zip, and counts what it merges
- `dml_nb.data.glyphs`: Characters of five scripts in sixteen typefaces, of which one script is for training
- `dml_nb.data.images`: Pictures and vectors from files or arrays, decoded once, with labels and a fingerprint
- `dml_nb.data.noise`: Wrong labels on purpose, what they do to pairs, and whether a loss bears it.
- `dml_nb.data.pixels`: Pictures that one command decoded and resized are read by the next from a bounded folder.
- `dml_nb.data.readers`: What most people have becomes an `ImageSet`, and every mistake in it is named
- `dml_nb.data.samplers`: Batches of classes × images: every image shown, resumable, shared by processes.
- `dml_nb.data.sources`: `load_data` gives an `ImageSet` of a published set, a folder, a zip, a table or vectors
- `dml_nb.data.splits`: Hold back pictures of every class, or whole classes
- `dml_nb.data.transforms`: Crops, mirror images, small moves and turns, behind a set or for a batch
- `dml_nb.engine.blocks`: Statistics, value and weights of a batch, one block of anchors at a time.
- `dml_nb.engine.inputs`: From what a user gives to unit rows and the table of pairs, or to an error that says what was expected.
- `dml_nb.engine.memory`: Rows of S, their weights, and one or two products: in blocks, or at once where that is faster.
- `dml_nb.engine.operator`: One operator whose gradient is known with its value.
- `dml_nb.engine.scratch`: Matrices of a block, handed out again for the next block and the next loss.
- `dml_nb.engine.tables`: The table of pairs of a batch, made from labels or masks, and its blocks.
- `dml_nb.evaluation.clustering`: Clusters, probes and few-shot accuracy: an embedding beyond ranking.
- `dml_nb.evaluation.ranks`: The ranks of all right items of all queries, exact, in blocks, from memory or from a disk.
- `dml_nb.evaluation.relevance`: The measures of a ranking where items share labels, or are relevant by degrees.
- `dml_nb.evaluation.retrieval`: Rank measures, exact, in blocks, with ties counted against the model.
- `dml_nb.evaluation.verification`: Same or not: ROC, AUC, equal error rate, TAR at a FAR, accuracy in folds.
- `dml_nb.experiments.benchmark`: One command that times this package and its peers on your machine: `dml bench`.
- `dml_nb.experiments.compare`: Two questions for each loss and seed, and means with intervals.
- `dml_nb.experiments.comparisons`: Jobs that every library of the field offers, as short programs, with the sizes at which `dml bench` times them.
- `dml_nb.experiments.recipe`: A recipe says everything that decides the numbers of a training, and goes through JSON.
- `dml_nb.experiments.report`: Table, curves, t-SNE and neighbours of a comparison as one HTML page.
- `dml_nb.experiments.statistics`: Several seeds give an interval, and a difference is held against its own.
- `dml_nb.experiments.store`: A finished run is a file, named by a hash of everything that decides its numbers.
- `dml_nb.experiments.sweeps`: A grid of settings, run in several processes, and the best setting by the validation classes.
- `dml_nb.experiments.trial`: The same recipe gives the same result.
- `dml_nb.losses.adapted`: Who selects triplets also selects images: the shift between the two, as a loss.
- `dml_nb.losses.angular`: A triplet is a triangle. All triplets of a batch, without listing them.
- `dml_nb.losses.catalogue`: Every loss with its page and paper: how it is made, what it charges and cannot see.
- `dml_nb.losses.concordance`: How often a stranger is nearer than a friend, as a loss and as a measure.
- `dml_nb.losses.contrastive`: InfoNCE, SupCon, Circle and their relatives: their values and their pair weights.
- `dml_nb.losses.discrepancy`: Push every class away from all the others at once.
- `dml_nb.losses.dro`: Simple pair losses under the worst weights that a set allows.
- `dml_nb.losses.histogram`: A loss without a margin: how likely is a negative pair above a positive one?
- `dml_nb.losses.lifted`: Two logarithms of sums per anchor, whose weights are softmaxes.
- `dml_nb.losses.multisimilarity`: Which pairs are worth a look, and how hard each is pushed.
- `dml_nb.losses.neighbours`: One positive against all negatives, and all positives against all.
- `dml_nb.losses.pairs`: Losses that weight a pair by its own similarity, and what they cannot see.
- `dml_nb.losses.proxies`: Any pair loss against learnable rows: ArcFace, Proxy-Anchor and five others.
- `dml_nb.losses.ranking`: Smooth-AP, FastAP, recall@k and the ranked list, beside the measures themselves.
- `dml_nb.losses.structure`: Any pair loss on sets of labels, on levels of classes, and on degrees of relevance.
- `dml_nb.losses.triplet`: A hinge on every (anchor, positive, negative) by counting, not by listing.
- `dml_nb.losses.uncertainty`: The worst weighted mean of some losses, exactly, for nine sets of weights.
- `dml_nb.papers.adapted`: What correcting a selection of triplets changes: each table, figure and claim, measured.
- `dml_nb.papers.concordance`: The claims, tables and figures of the paper on concordance, printed beside measured.
- `dml_nb.papers.discrepancy`: What the DCDL paper prints, what it claims, and what small runs say of both.
- `dml_nb.papers.dro`: Every table of the DRO paper beside what is measured here, and its claims with verdicts.
- `dml_nb.papers.exhibits`: A table of a paper that can be run again, and a claim that can fail.
- `dml_nb.papers.multisimilarity`: The tables and claims of the multi-similarity paper, printed beside measured.
- `dml_nb.plots`: One style, and the few pictures that every page draws.
- `dml_nb.proof.behaviour`: Bad input, half precision, blocks, copies, compilation and settings, checked in one line
- `dml_nb.proof.symbolic`: From symbols to numbers: what sympy proves, and a working loss that it derives
- `dml_nb.proof.weights`: A loss equals its definition three ways, on every kind of batch.
- `dml_nb.search.browser`: `dml browse`: the map of an embedding, its mistakes, and what a loss makes of them.
- `dml_nb.search.card`: README.md and curves.png beside a model: what it was trained on, how, and how good it is.
- `dml_nb.search.choices`: The device, what is done to pictures, what learns from when on, and where a log is written.
- `dml_nb.search.everyday`: Train on your own pictures, judge by classes that were held back, keep the best network.
- `dml_nb.search.folders`: Put every picture of a folder into an index, and find those that are like others.
- `dml_nb.search.index`: Search by vector, picture or id, with filters, and files that a crash cannot harm
- `dml_nb.search.mistakes`: The map of an embedding, the worst queries, doubtful labels, and what a loss does to a batch.
- `dml_nb.search.pages`: Parts of every page of `dml browse`: its head and links, figures, tables, small copies.
- `dml_nb.search.pictures`: Read what people have, leave out what cannot be read, hold back whole classes.
- `dml_nb.search.refine`: Query expansion, re-ranking, whitening and small vectors: what they change, with intervals.
- `dml_nb.support.results`: Numbers beside the machine, the versions and the code that made them
- `dml_nb.support.storage`: A file is whole or absent, a folder has one writer, and damage is found
- `dml_nb.support.validate`: One form of message for every argument that does not fit
- `dml_nb.training.bodies`: SqueezeNet and ResNet as torchvision has them, to be filled from a file without it.
- `dml_nb.training.callbacks`: Any loss added to any Learner, and what it does to pairs, epoch by epoch.
- `dml_nb.training.distribution`: One loss of the rows of all processes, with the exact gradient.
- `dml_nb.training.embedding`: A body that sees, a pooling, a head that places, and rows of length one.
- `dml_nb.training.features`: What is frozen is computed once; a trained embedder is saved without code.
- `dml_nb.training.learner`: P × M batches in, unit embeddings out, retrieval measured over the whole validation set
- `dml_nb.training.memory`: Past embeddings as references, batches larger than memory, and a temperature that is learned
- `dml_nb.training.methods`: What each paper's method does to its pairs, epoch by epoch.
- `dml_nb.training.networks`: Small networks, those of torchvision and timm, cut before the classifier, and the files their weights come from.
- `dml_nb.training.recovery`: A checkpoint every few steps, and after a kill the same weights as without it
- `dml_nb.transport`: The cheapest way to move one set of points onto another, made smooth.
- `dml_nb.weighting`: From a loss's value and pair weights to the gradient of the embeddings."""

__version__ = "0.0.1"

#: The loss to start with, by its name in `dml_nb.losses.catalogue.LOSSES`: what the page on choosing
#: a loss finds in the comparison of all of them.
DEFAULT_LOSS = "infonce"
