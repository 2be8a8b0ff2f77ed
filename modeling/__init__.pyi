from .act.encoder import (
    AlbertActModel as AlbertActModel,
    AlbertActModelOutput as AlbertActModelOutput,
)
from .act.heads import (
    AlbertActForMaskedLM as AlbertActForMaskedLM,
    AlbertActForMultipleChoice as AlbertActForMultipleChoice,
    AlbertActForPreTraining as AlbertActForPreTraining,
    AlbertActForQuestionAnswering as AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification as AlbertActForSequenceClassification,
    AlbertActForTokenClassification as AlbertActForTokenClassification,
    AlbertActOutput as AlbertActOutput,
)
from .configuration import (
    AlbertActConfig as AlbertActConfig,
    ElbertConfig as ElbertConfig,
    PonderAlbertConfig as PonderAlbertConfig,
)
from .cpu_packing import (
    cast_layers as cast_layers,
    packed_copy as packed_copy,
)
from .depth import (
    EarlyExitModel as EarlyExitModel,
    EarlyExitOutput as EarlyExitOutput,
)
from .depth_batching import (
    DepthBatcher as DepthBatcher,
)
from .errors import (
    UserError as UserError,
)
from .exits.model import (
    ElbertForSequenceClassification as ElbertForSequenceClassification,
)
from .graphs import (
    graphed_copy as graphed_copy,
)
from .loading.by_mode import (
    load_act as load_act,
    load_ponder as load_ponder,
    load_pretrained as load_pretrained,
)
from .loading.configs import (
    load_config as load_config,
)
from .loading.tokenizers import (
    load_tokenizer as load_tokenizer,
)
from .loading.weights import (
    LoadReport as LoadReport,
    load_model as load_model,
)
from .losses import (
    PonderClassificationLoss as PonderClassificationLoss,
)
from .ponder.distribution import (
    GeneralizedGeometricDist as GeneralizedGeometricDist,
)
from .ponder.model import (
    PonderAlbertClassifier as PonderAlbertClassifier,
    PonderAlbertForSequenceClassification as PonderAlbertForSequenceClassification,
    PonderOutput as PonderOutput,
    with_halting_token as with_halting_token,
)
from .ponder.pondernet import (
    ParityDataset as ParityDataset,
    ParityPonderGRU as ParityPonderGRU,
    PonderNet as PonderNet,
    ReconstructionLoss as ReconstructionLoss,
    RegularizationLoss as RegularizationLoss,
)
from .rules import (
    ExitRule as ExitRule,
    exit_scores as exit_scores,
    scan as scan,
    scan_answers as scan_answers,
)
