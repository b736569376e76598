"Every loss, miner and selection of the book, by name"
from dml_nb.losses.adapted import (
    AdaptedTriplet, SelectionBias, class_ratio, induced_counts, matching_loss, nearest_class_mean,
    semi_matching_loss)
from dml_nb.losses.angular import Angular, AngularNPairs
from dml_nb.losses.concordance import CIT, c_index, concordance, generalization_bound
from dml_nb.losses.contrastive import Circle, InfoNCE, SigLIP, SupCon
from dml_nb.losses.discrepancy import DCDL, ClassDiscrepancy
from dml_nb.losses.dro import DRO, DROKL, DROKLGrouped, DROTopK, DROTopKPN
from dml_nb.losses.hardest import HAP2S, BatchHard
from dml_nb.losses.histogram import Histogram
from dml_nb.losses.lifted import LiftedStructure, LiftedStructureStar
from dml_nb.losses.margins import CentroidTriplet, IntraPairVariance, MarginLoss, TupletMargin
from dml_nb.losses.mining import DistanceWeighted, SemiHardPairs
from dml_nb.losses.multisimilarity import MultiSimilarity, MultiSimilarityMiner
from dml_nb.losses.neighbours import NCA, NPairs
from dml_nb.losses.pairs import BinLifted, Binomial, Contrastive, EqualWeights
from dml_nb.losses.proxies import (
    ArcFace, CosFace, NormalizedSoftmax, Proxies, ProxyAnchor, ProxyNCA, SoftTriple,
    SubCenterArcFace)
from dml_nb.losses.ranking import FastAP, RankedList, RecallAtK, SmoothAP
from dml_nb.losses.selections import HardTriplets, RandomTriplets, SemiHard
from dml_nb.losses.structure import Graded, Levels, Shares
from dml_nb.losses.triplet import Triplet

__all__ = [
    'AdaptedTriplet', 'Angular', 'AngularNPairs', 'ArcFace', 'BatchHard', 'BinLifted',
    'Binomial', 'CIT', 'CentroidTriplet', 'Circle', 'ClassDiscrepancy', 'Contrastive',
    'CosFace', 'DCDL', 'DRO', 'DROKL', 'DROKLGrouped', 'DROTopK', 'DROTopKPN',
    'DistanceWeighted', 'EqualWeights', 'FastAP', 'Graded', 'HAP2S', 'HardTriplets', 'Histogram',
    'InfoNCE', 'IntraPairVariance', 'Levels', 'LiftedStructure', 'LiftedStructureStar', 'MarginLoss',
    'MultiSimilarity', 'MultiSimilarityMiner', 'NCA', 'NPairs', 'NormalizedSoftmax', 'Proxies',
    'ProxyAnchor', 'ProxyNCA', 'RandomTriplets', 'RankedList', 'RecallAtK', 'SelectionBias',
    'SemiHard', 'SemiHardPairs', 'Shares', 'SigLIP', 'SmoothAP', 'SoftTriple', 'SubCenterArcFace',
    'SupCon', 'Triplet', 'TupletMargin', 'c_index', 'class_ratio', 'concordance',
    'generalization_bound', 'induced_counts', 'matching_loss', 'nearest_class_mean',
    'semi_matching_loss',
]
