"Every loss and miner of the book, by name"
from dml_nb.losses.angular import Angular, AngularNPairs
from dml_nb.losses.histogram import Histogram
from dml_nb.losses.lifted import LiftedStructure, LiftedStructureStar
from dml_nb.losses.multisimilarity import MultiSimilarity, MultiSimilarityMiner
from dml_nb.losses.neighbours import NCA, NPairs
from dml_nb.losses.pairs import BinLifted, Binomial, Contrastive, EqualWeights
from dml_nb.losses.triplet import Triplet

__all__ = ['Angular', 'AngularNPairs', 'BinLifted', 'Binomial', 'Contrastive', 'EqualWeights', 'Histogram', 'LiftedStructure', 'LiftedStructureStar',
           'MultiSimilarity', 'MultiSimilarityMiner', 'NCA', 'NPairs', 'Triplet']
