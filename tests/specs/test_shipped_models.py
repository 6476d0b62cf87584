"""Every shipped model loads, counts to what is known of it and agrees with its publisher."""

import json
from dataclasses import asdict

import pytest

from simulator.cost.operations.blocks import embedding, output_layer, prediction
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import Conditions
from simulator.cost.operations.sums import active_parameters, total_parameters, weights_of
from simulator.errors import InputError, SimulateError
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import plain, sourced_parts, validated
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.names import model_names
from simulator.question.units import parse_count
from tests.memory.counted import mtp_parameters

# Total; active with all tables; active without the input table; MTP modules. Computed apart from this code.
COUNTS = {
    "pythia-70m": (70_426_624, 70_426_624, 44_670_976, 0),
    "pythia-160m": (162_322_944, 162_322_944, 123_689_472, 0),
    "pythia-410m": (405_334_016, 405_334_016, 353_822_720, 0),
    "pythia-1b": (1_011_781_632, 1_011_781_632, 908_759_040, 0),
    "pythia-1.4b": (1_414_647_808, 1_414_647_808, 1_311_625_216, 0),
    "pythia-2.8b": (2_775_208_960, 2_775_208_960, 2_646_430_720, 0),
    "pythia-6.9b": (6_857_302_016, 6_857_302_016, 6_650_732_544, 0),
    "gpt2-124m": (124_439_808, 124_439_808, 123_653_376, 0),
    "gpt2-medium": (354_823_168, 354_823_168, 353_774_592, 0),
    "gpt2-large": (774_030_080, 774_030_080, 772_719_360, 0),
    "gpt2-xl": (1_557_611_200, 1_557_611_200, 1_555_972_800, 0),
    "open-llama-3b": (3_426_473_600, 3_426_473_600, 3_324_073_600, 0),
    "codellama-7b": (6_738_546_688, 6_738_546_688, 6_607_409_152, 0),
    "codellama-13b": (13_016_028_160, 13_016_028_160, 12_852_106_240, 0),
    "codellama-34b": (33_743_970_304, 33_743_970_304, 33_481_826_304, 0),
    "mistral-7b-v0.3": (7_248_023_552, 7_248_023_552, 7_113_805_824, 0),
    "yi-34b": (34_388_917_248, 34_388_917_248, 33_930_165_248, 0),
    "qwen1.5-1.8b": (1_836_828_672, 1_836_828_672, 1_525_663_744, 0),
    "qwen1.5-7b": (7_721_324_544, 7_721_324_544, 7_098_994_688, 0),
    "qwen1.5-14b": (14_167_290_880, 14_167_290_880, 13_388_723_200, 0),
    "qwen1.5-32b": (32_512_218_112, 32_512_218_112, 31_733_650_432, 0),
    "qwen1.5-72b": (72_287_920_128, 72_287_920_128, 71_042_211_840, 0),
    "baichuan2-7b": (7_505_973_248, 7_505_973_248, 6_991_122_432, 0),
    "chatglm2-6b": (6_243_584_000, 6_243_584_000, 5_977_245_696, 0),
    "deepseek-v4-flash": (284_332_240_471, 13_799_632_471, 13_270_101_591, 6_610_048_891),
    "deepseek-v4-pro": (1_572_997_201_763, 49_779_081_059, 48_852_402_019, 25_840_145_979),
    "gemma-4-31b": (30_697_345_280, 30_697_345_280, 30_697_345_280, 0),
    "gemma-4-26b-a4b": (25_233_141_760, 3_822_530_560, 3_822_530_560, 0),
    "kimi-linear-48b-a3b": (49_122_681_728, 3_484_459_904, 3_106_972_544, 0),
    "llama-3.3-nemotron-super-49b": (49_867_145_216, 49_867_145_216, 48_816_472_064, 0),
    "gemma-2b": (2_506_172_416, 2_506_172_416, 2_506_172_416, 0),
    "bloomz-7b1": (7_069_016_064, 7_069_016_064, 7_069_007_872, 0),
    "yi-6b": (6_061_035_520, 6_061_035_520, 5_798_891_520, 0),
    "gemma-4-e2b": (4_628_569_344, 4_628_569_344, 2_279_758_848, 0),
    "gemma-4-e4b": (7_463_013_376, 7_463_013_376, 4_644_440_832, 0),
    "ministral-3-14b": (13_506_073_600, 13_506_073_600, 12_834_984_960, 0),
    "ministral-3-3b": (3_429_006_336, 3_429_006_336, 3_429_006_336, 0),
    "ministral-3-8b": (8_489_553_920, 8_489_553_920, 7_952_683_008, 0),
    "nemotron-3-nano-4b": (3_973_556_832, 3_973_556_832, 3_562_515_040, 0),
    "nemotron-3-super-120b-a12b": (120_668_707_840, 12_770_237_440, 12_233_366_528, 2_942_325_248),
    "nemotron-3-ultra-550b-a55b": (549_308_993_536, 56_058_843_136, 54_985_101_312, 11_215_610_368),
    "nemotron-3.5-lightning-30b-a3b": (31_577_940_288, 3_580_076_352, 3_227_754_816, 1_335_325_952),
    "nemotron-nano-9b-v2": (8_888_227_328, 8_888_227_328, 8_301_024_768, 0),
    "step-3.5-flash": (195_844_508_736, 10_875_702_336, 10_347_744_320, 13_968_275_040),
    "devstral-small-2-24b": (23_572_403_200, 23_572_403_200, 22_901_314_560, 0),
    "hy3-preview": (294_958_046_016, 20_600_232_768, 20_070_701_888, 0),
    "hy-mt2-30b-a3b": (30_064_725_888, 3_451_867_008, 3_204_403_072, 0),
    "mistral-small-4-119b": (118_972_831_232, 6_632_592_896, 6_095_721_984, 0),
    "yuan2-2b": (2_088_724_480, 2_088_724_480, 2_088_724_480, 0),
    "qwen-7b": (7_721_324_544, 7_721_324_544, 7_098_994_688, 0),
    "glm-4.5-air": (106_852_251_264, 13_424_129_664, 12_803_372_672, 2_375_059_584),
    "llama-7b": (6_738_415_616, 6_738_415_616, 6_607_343_616, 0),
    "llama-13b": (13_015_864_320, 13_015_864_320, 12_852_024_320, 0),
    "llama-2-7b": (6_738_415_616, 6_738_415_616, 6_607_343_616, 0),
    "llama-2-13b": (13_015_864_320, 13_015_864_320, 12_852_024_320, 0),
    "llama-2-70b": (68_976_648_192, 68_976_648_192, 68_714_504_192, 0),
    "llama3-8b": (8_030_261_248, 8_030_261_248, 7_504_924_672, 0),
    "llama3-70b": (70_553_706_496, 70_553_706_496, 69_503_033_344, 0),
    "llama3.1-8b": (8_030_261_248, 8_030_261_248, 7_504_924_672, 0),
    "llama3.1-70b": (70_553_706_496, 70_553_706_496, 69_503_033_344, 0),
    "llama3.1-405b": (405_853_388_800, 405_853_388_800, 403_752_042_496, 0),
    "llama3.2-1b": (1_235_814_400, 1_235_814_400, 1_235_814_400, 0),
    "llama3.2-3b": (3_212_749_824, 3_212_749_824, 3_212_749_824, 0),
    "qwen2.5-0.5b": (494_032_768, 494_032_768, 494_032_768, 0),
    "qwen2.5-1.5b": (1_543_714_304, 1_543_714_304, 1_543_714_304, 0),
    "qwen2.5-3b": (3_085_938_688, 3_085_938_688, 3_085_938_688, 0),
    "qwen2.5-7b": (7_615_616_512, 7_615_616_512, 7_070_619_136, 0),
    "qwen2.5-14b": (14_770_033_664, 14_770_033_664, 13_991_465_984, 0),
    "qwen2.5-32b": (32_763_876_352, 32_763_876_352, 31_985_308_672, 0),
    "qwen2.5-72b": (72_706_203_648, 72_706_203_648, 71_460_495_360, 0),
    "qwen3-0.6b": (596_049_920, 596_049_920, 596_049_920, 0),
    "qwen3-1.7b": (1_720_574_976, 1_720_574_976, 1_720_574_976, 0),
    "qwen3-4b": (4_022_468_096, 4_022_468_096, 4_022_468_096, 0),
    "qwen3-8b": (8_190_735_360, 8_190_735_360, 7_568_405_504, 0),
    "qwen3-14b": (14_768_307_200, 14_768_307_200, 13_990_394_880, 0),
    "qwen3-32b": (32_762_123_264, 32_762_123_264, 31_984_210_944, 0),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704, 3_041_867_776, 0),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520, 21_568_433_664, 0),
    "mistral-nemo-12b": (12_247_782_400, 12_247_782_400, 11_576_693_760, 0),
    "mistral-7b-v0.1": (7_241_732_096, 7_241_732_096, 7_110_660_096, 0),
    "mixtral-8x7b-v0.1": (46_702_792_704, 12_879_925_248, 12_748_853_248, 0),
    "mixtral-8x22b-v0.1": (140_620_634_112, 39_152_031_744, 38_955_423_744, 0),
    "moonlight-16b-a3b": (15_960_110_208, 2_914_776_192, 2_579_231_872, 0),
    "deepseek-v2-lite": (15_706_484_224, 2_661_150_208, 2_451_435_008, 0),
    "deepseek-v2": (235_741_434_880, 21_375_800_320, 20_851_512_320, 0),
    "deepseek-v3": (671_026_419_200, 37_552_297_472, 36_625_618_432, 11_610_068_224),
    "ernie-3.5-se-3b": (3_708_427_264, 3_708_427_264, 3_610_123_264, 0),
    "ernie-4.5-0.3b": (360_748_032, 360_748_032, 360_748_032, 0),
    "ernie-4.5-21b-a3b": (21_825_437_888, 3_352_150_208, 3_352_150_208, 807_580_224),
    "ernie-4.5-300b-a47b": (299_484_163_264, 47_926_586_560, 47_079_337_152, 5_922_922_560),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912, 5_132_849_472, 0),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704, 3_608_307_264, 0),
    "gemma-2-27b": (27_227_128_320, 27_227_128_320, 27_227_128_320, 0),
    "kimi-k2": (1_026_408_232_448, 32_861_500_928, 31_687_095_808, 0),
    "deepseek-v3.2": (671_877_944_064, 38_403_822_336, 37_477_143_296, 11_624_027_648),
    "olmo-2-32b": (32_234_279_936, 32_234_279_936, 31_720_477_696, 0),
    "glm-5": (743_911_218_432, 41_784_728_832, 40_833_146_112, 9_952_920_576),
    "qwen2-57b-a14b": (57_408_658_944, 14_249_270_784, 13_704_732_160, 0),
    "qwen3.5-27b": (26_895_998_464, 26_895_998_464, 25_624_600_064, 424_699_392),
    "glm-5.2": (743_377_019_904, 41_250_530_304, 40_298_947_584, 9_943_548_672),
    "qwen3.5-122b-a10b": (122_111_526_912, 9_771_288_576, 9_008_449_536, 2_523_679_232),
    "qwen3.5-397b-a17b": (396_346_350_336, 17_349_040_896, 16_331_922_176, 6_595_568_128),
    "qwen3.5-35b-a3b": (34_660_610_688, 3_454_988_928, 2_946_429_568, 844_640_768),
    "nemotron-h-56b": (56_324_350_464, 56_324_350_464, 55_250_608_640, 0),
    "nemotron-3-nano-30b-a3b": (31_577_940_288, 3_580_076_352, 3_227_754_816, 0),
    "pythia-12b": (11_846_072_320, 11_846_072_320, 11_586_549_760, 0),
    "llama-4-scout": (107_769_861_120, 17_172_894_720, 16_138_408_960, 0),
    "llama-4-maverick": (400_711_848_960, 17_184_691_200, 16_150_205_440, 0),
    "minimax-m2.7": (228_689_764_864, 11_030_553_088, 10_415_956_480, 11_062_807_296),
    "mimo-v2-flash": (308_778_780_864, 15_445_936_320, 14_820_985_024, 0),
    "phi-3-mini": (3_821_079_552, 3_821_079_552, 3_722_578_944, 0),
    "phi-4": (14_659_507_200, 14_659_507_200, 14_145_704_960, 0),
    "gemma-7b": (8_537_680_896, 8_537_680_896, 8_537_680_896, 0),
    "gemma-2-2b": (2_614_341_888, 2_614_341_888, 2_614_341_888, 0),
    "gemma-2-9b": (9_241_705_984, 9_241_705_984, 9_241_705_984, 0),
    "smollm2-135m": (134_515_008, 134_515_008, 134_515_008, 0),
    "smollm2-360m": (361_821_120, 361_821_120, 361_821_120, 0),
    "smollm2-1.7b": (1_711_376_384, 1_711_376_384, 1_711_376_384, 0),
    "smollm3-3b": (3_075_098_624, 3_075_098_624, 3_075_098_624, 0),
    "olmo-2-1b": (1_484_916_736, 1_484_916_736, 1_279_395_840, 0),
    "olmo-2-7b": (7_298_617_344, 7_298_617_344, 6_887_575_552, 0),
    "olmo-2-13b": (13_716_198_400, 13_716_198_400, 13_202_396_160, 0),
    "olmo-3-7b": (7_298_011_136, 7_298_011_136, 6_887_272_448, 0),
    "olmo-3-32b": (32_233_522_176, 32_233_522_176, 31_720_098_816, 0),
    "olmo-7b": (6_888_095_744, 6_888_095_744, 6_682_050_560, 0),
    "olmo-1b": (1_176_764_416, 1_176_764_416, 1_176_764_416, 0),
    "tinyllama-1.1b": (1_100_048_384, 1_100_048_384, 1_034_512_384, 0),
    "starcoder2-15b": (15_957_889_024, 15_957_889_024, 15_655_899_136, 0),
    "starcoderbase": (15_517_456_384, 15_517_456_384, 15_467_124_736, 0),
    "deepseek-r1-distill-qwen-1.5b": (1_777_088_000, 1_777_088_000, 1_543_714_304, 0),
    "qwen1.5-4b": (3_950_369_280, 3_950_369_280, 3_561_413_120, 0),
    "falcon3-10b": (10_305_653_760, 10_305_653_760, 9_903_000_576, 0),
    "yi-1.5-9b": (8_829_407_232, 8_829_407_232, 8_567_263_232, 0),
    "codestral-22b": (22_247_282_688, 22_247_282_688, 22_045_956_096, 0),
    "mistral-large-123b": (122_610_069_504, 122_610_069_504, 122_207_416_320, 0),
    "deepseek-llm-7b": (6_910_365_696, 6_910_365_696, 6_490_935_296, 0),
    "ministral-8b": (8_019_808_256, 8_019_808_256, 7_482_937_344, 0),
    "falcon3-7b": (7_455_550_464, 7_455_550_464, 7_052_897_280, 0),
    "granite-3.3-2b": (2_533_539_840, 2_533_539_840, 2_533_539_840, 0),
    "seed-coder-8b": (8_250_462_208, 8_250_462_208, 7_615_025_152, 0),
    "seed-oss-36b": (36_151_104_512, 36_151_104_512, 35_356_808_192, 0),
    "glm-4-9b": (9_399_951_360, 9_399_951_360, 8_779_194_368, 0),
    "starcoder2-7b": (7_173_923_840, 7_173_923_840, 7_173_923_840, 0),
    "starcoder2-3b": (3_030_371_328, 3_030_371_328, 3_030_371_328, 0),
    "ling-mini-2.0": (16_255_643_392, 1_432_973_056, 1_111_060_224, 0),
    "ling-flash-2.0": (102_889_705_216, 6_152_277_760, 5_508_452_096, 0),
    "ling-1t": (999_705_328_640, 51_054_427_136, 49_766_775_808, 0),
    "glm-4.6": (352_797_829_024, 33_632_266_144, 32_856_319_904, 3_988_069_792),
    "glm-4.7-flash": (29_943_393_920, 3_896_766_080, 3_579_571_840, 643_706_176),
    "qwen1.5-moe-a2.7b": (14_315_784_192, 2_689_173_504, 2_378_008_576, 0),
    "qwen3-next-80b-a3b": (79_674_391_296, 3_874_929_408, 3_563_764_480, 1_650_471_424),
    "phi-2": (2_779_683_840, 2_779_683_840, 2_648_611_840, 0),
    "command-r7b": (8_028_033_024, 8_028_033_024, 8_028_033_024, 0),
    "mpt-7b": (6_649_286_656, 6_649_286_656, 6_649_286_656, 0),
    "mpt-30b": (29_957_200_896, 29_957_200_896, 29_957_200_896, 0),
    "opt-2.7b": (2_651_596_800, 2_651_596_800, 2_646_348_800, 0),
    "dbrx": (131_596_523_520, 36_469_708_800, 35_853_146_112, 0),
    "gemma-3-270m": (268_098_176, 268_098_176, 268_098_176, 0),
    "pythia-14m": (14_067_712, 14_067_712, 7_628_800, 0),
    "gpt3-175b": (174_604_259_328, 174_604_259_328, 174_579_093_504, 0),
    "baichuan2-13b": (13_896_668_160, 13_896_668_160, 13_253_104_640, 0),
    "bloom-176b": (176_247_271_424, 176_247_271_424, 176_247_242_752, 0),
    "codellama-70b": (68_976_910_336, 68_976_910_336, 68_714_635_264, 0),
    "command-r-35b": (34_980_831_232, 34_980_831_232, 34_980_831_232, 0),
    "deepseek-coder-33b": (33_342_991_360, 33_342_991_360, 33_111_780_352, 0),
    "deepseek-coder-6.7b": (6_740_512_768, 6_740_512_768, 6_608_392_192, 0),
    "deepseek-llm-67b": (67_425_001_472, 67_425_001_472, 66_586_140_672, 0),
    "deepseek-moe-16b": (16_375_728_128, 2_828_650_496, 2_618_935_296, 0),
    "falcon-180b": (178_557_088_768, 178_557_088_768, 178_557_088_768, 0),
    "falcon-40b": (41_303_293_952, 41_303_293_952, 41_303_293_952, 0),
    "falcon-7b": (6_921_720_704, 6_921_720_704, 6_921_720_704, 0),
    "gemma-3-1b": (999_885_952, 999_885_952, 999_885_952, 0),
    "glm-4-32b": (32_566_081_536, 32_566_081_536, 31_634_946_048, 0),
    "glm-4.5": (352_797_829_024, 33_632_266_144, 32_856_319_904, 3_988_069_792),
    "gpt-j-6b": (6_050_882_784, 6_050_882_784, 5_844_444_384, 0),
    "gpt-neox-20b": (20_554_567_680, 20_554_567_680, 20_244_713_472, 0),
    "gpt3-1.3b": (1_315_723_264, 1_315_723_264, 1_311_528_960, 0),
    "gpt3-13b": (12_853_386_240, 12_853_386_240, 12_842_900_480, 0),
    "gpt3-6.7b": (6_658_404_352, 6_658_404_352, 6_650_015_744, 0),
    "granite-3.1-8b": (8_170_848_256, 8_170_848_256, 8_170_848_256, 0),
    "grok-1": (315_684_820_992, 83_756_587_008, 83_756_587_008, 0),
    "internlm2-20b": (19_861_149_696, 19_861_149_696, 19_292_559_360, 0),
    "internlm2.5-7b": (7_737_708_544, 7_737_708_544, 7_358_648_320, 0),
    "llama-30b": (32_528_943_616, 32_528_943_616, 32_315_951_616, 0),
    "llama-65b": (65_285_660_672, 65_285_660_672, 65_023_516_672, 0),
    "minimax-01": (456_089_655_296, 48_403_306_496, 47_174_113_280, 0),
    "mistral-small-24b": (23_572_403_200, 23_572_403_200, 22_901_314_560, 0),
    "mistral-small-3.1-24b": (23_572_403_200, 23_572_403_200, 22_901_314_560, 0),
    "nemotron-4-15b": (15_628_775_424, 15_628_775_424, 14_055_911_424, 0),
    "nemotron-4-340b": (341_029_195_776, 341_029_195_776, 336_310_603_776, 0),
    "olmoe-1b-7b": (6_919_161_856, 1_282_017_280, 1_178_994_688, 0),
    "opt-1.3b": (1_315_758_080, 1_315_758_080, 1_311_559_680, 0),
    "opt-13b": (12_853_473_280, 12_853_473_280, 12_842_977_280, 0),
    "opt-175b": (174_604_468_224, 174_604_468_224, 174_579_277_824, 0),
    "opt-30b": (29_974_540_288, 29_974_540_288, 29_959_845_888, 0),
    "opt-6.7b": (6_658_473_984, 6_658_473_984, 6_650_077_184, 0),
    "opt-66b": (65_719_701_504, 65_719_701_504, 65_700_808_704, 0),
    "phi-3-medium": (13_960_238_080, 13_960_238_080, 13_796_070_400, 0),
    "phi-3.5-mini": (3_821_079_552, 3_821_079_552, 3_722_578_944, 0),
    "phi-4-mini": (3_836_021_760, 3_836_021_760, 3_836_021_760, 0),
    "qwen3-coder-480b-a35b": (480_154_875_392, 35_474_765_312, 34_541_270_528, 0),
}

# Published counts further than 0.5 % from the shape, and why.
TOTAL_EXCEPTIONS = {
    "glm-4.6": (0.007, "355B counts part of the prediction module"),
    "deepseek-v4-pro": (0.017, "1.57T rounded to two digits"),
    "kimi-linear-48b-a3b": (0.024, "49.1B called 48B"),
    "llama-7b": (0.006, "6.7B is 6.74B with its last digit cut off"),
    "qwen2.5-0.5b": (0.009, "0.494B is cut to 0.49B"),
    "qwen2.5-32b": (0.009, "the card's 32.5B is not explained by rounding; two sources agree on the shape"),
    "qwen3-0.6b": (0.007, "0.596B rounded to one digit"),
    "qwen3-1.7b": (0.013, "1.72B rounded to two digits"),
    "qwen3-4b": (0.006, "4.02B rounded to two digits"),
    "ernie-3.5-se-3b": (0.237, "3.71B called 3B"),
    "ernie-4.5-21b-a3b": (0.040, "21.83B rounded down to 21B"),
    "kimi-k2": (0.027, "1.03T rounded to 1T"),
    "glm-4.5-air": (0.009, "106.85B cut to 106B"),
    "olmo-2-32b": (0.008, "32.2B rounded to two digits"),
    "qwen3.5-35b-a3b": (0.010, "34.7B rounded to two digits"),
    "nemotron-h-56b": (0.006, "56.3B rounded to two digits"),
    "yuan2-2b": (0.006, "2.09B rounded to two digits"),
    "devstral-small-2-24b": (0.018, "23.6B rounded to 24B"),
    "gemma-4-e2b": (0.007, "4.63B rounded to two digits"),
    "ministral-3-3b": (0.009, "3.43B rounded to two digits"),
    "ministral-3-8b": (0.012, "8.49B cut to two digits"),
    "nemotron-3-nano-4b": (0.007, "3.97B rounded to one digit"),
    "nemotron-nano-9b-v2": (0.013, "8.89B rounded to one digit"),
    "nemotron-3-super-120b-a12b": (0.006, "120.7B cut to 120B"),
    "nemotron-3.5-lightning-30b-a3b": (0.053, "31.6B cut to 30B"),
    "llama-4-scout": (0.012, "109B counts what reads images too"),
    "deepseek-coder-33b": (0.011, "33.3B rounded to two digits"),
    "deepseek-llm-67b": (0.007, "67.4B rounded to two digits"),
    "falcon-180b": (0.006, "179.5B are stored with the output layer apart from the table it is"),
    "glm-4-32b": (0.018, "32.6B cut to 32B"),
    "glm-4.5": (0.007, "355B counts part of the prediction module"),
    "gpt3-1.3b": (0.013, "1.32B rounded to two digits"),
    "gpt3-6.7b": (0.007, "6.66B rounded to two digits"),
    "gpt3-13b": (0.012, "12.9B rounded to two digits"),
    "granite-3.1-8b": (0.009, "8.17B cut to 8.1B"),
    "grok-1": (0.006, "314.9B without the token table, cut to 314B"),
    "opt-6.7b": (0.007, "6.66B rounded to two digits"),
    "opt-13b": (0.012, "12.9B rounded to two digits"),
}
# Publishers differ on counting the tables and round to two digits: the nearer of both counts is compared.
ACTIVE_EXCEPTIONS = {
    "ling-mini-2.0": (0.024, "1.43B cut to 1.4B"),
    "ling-flash-2.0": (0.009, "6.15B cut to 6.1B, both tables counted"),
    "glm-4.6": (0.027, "32.9B cut to 32B"),
    "glm-4.7-flash": (0.194, "3.58B called 3B"),
    "qwen3-next-80b-a3b": (0.188, "3.56B called 3B"),
    "deepseek-v4-flash": (0.021, "13.3B cut to 13B"),
    "kimi-linear-48b-a3b": (0.036, "3.11B rounded to 3B"),
    "gemma-4-26b-a4b": (0.006, "3.82B rounded to 3.8B"),
    "qwen3-30b-a3b": (0.017, "3.35B cut to 3.3B, both tables counted"),
    "qwen3-235b-a22b": (0.009, "22.19B rounded to 22B"),
    "moonlight-16b-a3b": (0.029, "2.91B rounded to 3B"),
    "deepseek-v2-lite": (0.022, "2.45B cut to 2.4B"),
    "deepseek-v2": (0.008, "20.85B rounded to 21B"),
    "deepseek-v3": (0.011, "36.63B rounded to 37B"),
    "ernie-4.5-21b-a3b": (0.118, "3.35B rounded down to 3B"),
    "gpt-oss-120b": (0.007, "5.13B cut to 5.1B"),
    "kimi-k2": (0.010, "31.7B rounded to 32B"),
    "deepseek-v3.2": (0.013, "37.5B: the indexers are not in 37B"),
    "glm-4.5-air": (0.067, "12.8B cut to 12B"),
    "glm-5": (0.021, "40.8B cut to 40B"),
    "glm-5.2": (0.008, "40.3B cut to 40B"),
    "qwen2-57b-a14b": (0.018, "14.2B rounded to 14B"),
    "qwen3.5-35b-a3b": (0.018, "2.95B rounded to 3B"),
    "qwen3.5-122b-a10b": (0.023, "9.8B rounded to 10B"),
    "qwen3.5-397b-a17b": (0.021, "17.3B cut to 17B, both tables counted"),
    "nemotron-3-nano-30b-a3b": (0.006, "3.58B rounded to 3.6B"),
    "llama-4-scout": (0.011, "17.2B rounded to 17B"),
    "llama-4-maverick": (0.011, "17.2B rounded to 17B"),
    "minimax-m2.7": (0.042, "10.4B rounded to 10B"),
    "mimo-v2-flash": (0.012, "14.8B rounded to 15B"),
    "hy3-preview": (0.020, "20.6B rounded to 21B"),
    "mistral-small-4-119b": (0.021, "6.63B called 6.5B"),
    "hy-mt2-30b-a3b": (0.069, "3.2B cut to 3B"),
    "step-3.5-flash": (0.012, "10.88B rounded to 11B"),
    "nemotron-3-super-120b-a12b": (0.020, "12.2B cut to 12B"),
    "nemotron-3.5-lightning-30b-a3b": (0.076, "3.23B cut to 3B"),
    "deepseek-moe-16b": (0.011, "2.83B rounded to 2.8B, both tables counted"),
    "glm-4.5": (0.027, "32.9B cut to 32B"),
    "grok-1": (0.027, "83.8B called 86B"),
    "minimax-01": (0.028, "45.9B counts neither table"),
    "olmoe-1b-7b": (0.014, "1.28B rounded to 1.3B, both tables counted"),
    "qwen3-coder-480b-a35b": (0.014, "34.5B rounded to 35B"),
}

LOOKED_UP = {"convolution", "filter_in", "filter_out", "compressed_bias", "index_compressed_bias"}
"""Weights with two sides that no product takes."""

each = pytest.mark.parametrize("name", sorted(COUNTS))


def test_all_are_shipped() -> None:
    assert set(model_names()) == set(COUNTS)


@each
def test_round_trip(name: str) -> None:
    spec = load_model(name)
    assert spec.name == name
    assert validated(name, ModelSpec, asdict(spec)) == spec
    assert validated(name, ModelSpec, json.loads(json.dumps(plain(spec)))) == spec
    assert {spec: 1}[load_model(name)] == 1


@each
def test_counts_are_exact(name: str) -> None:
    spec = load_model(name)
    counted = (
        total_parameters(spec),
        active_parameters(spec, include_input_embedding=True),
        active_parameters(spec, include_input_embedding=False),
        mtp_parameters(spec),
    )
    assert counted == COUNTS[name]


@each
def test_total_is_near_the_published_one(name: str) -> None:
    published = load_model(name).published
    assert published is not None
    assert published.total_parameters is not None
    stated = parse_count(published.total_parameters)
    tolerance, _ = TOTAL_EXCEPTIONS.get(name, (0.005, ""))
    off = abs(COUNTS[name][0] / stated - 1)
    assert off <= tolerance
    assert name not in TOTAL_EXCEPTIONS or off > 0.005


@each
def test_active_is_near_the_published_one(name: str) -> None:
    spec = load_model(name)
    published = spec.published.active_parameters if spec.published else None
    assert (published is not None) == spec.is_moe
    if published is None:
        return
    stated = parse_count(published)
    off = min(abs(count / stated - 1) for count in COUNTS[name][1:3])
    tolerance, _ = ACTIVE_EXCEPTIONS.get(name, (0.005, ""))
    assert off <= tolerance
    assert name not in ACTIVE_EXCEPTIONS or off > 0.005


@each
def test_sources_are_used(name: str) -> None:
    spec = load_model(name)
    assert spec.provenance is not None
    used = {key for _, part in sourced_parts(spec) for key in part.source}
    assert used == set(spec.sources)


@each
def test_weights_fit_together(name: str) -> None:
    spec = load_model(name)
    given = Conditions(spec)
    for kind in spec.layer_kinds:
        weights = weights_of(layer_operations(given, kind))
        names = [weight.name for weight in weights]
        assert len(names) == len(set(names))
        for weight in weights:
            assert weight.parameters > 0
            assert weight.matmul == (weight.inputs > 1) or weight.name in LOOKED_UP
            assert (weight.copies > 1) == weight.split.startswith("expert_")
    [table], (*ends, head) = embedding(given).weights, weights_of(output_layer(given))
    assert table.parameters == head.parameters
    assert not table.matmul
    norms = [one for one in ends if not one.name.startswith("head_")]
    assert all(one.parameters == spec.hidden_size for one in norms)
    more = spec.residual_streams > 1 or spec.head_bias
    assert spec.norm == "layer_norm_unweighted" or (len(norms) < len(ends)) == more
    assert bool(prediction(given)) == bool(spec.num_nextn_predict_layers)
    mixing_only = sum(kind.feed_forward == "none" for kind in spec.layers)
    both = sum(kind.feed_forward == "experts_beside" for kind in spec.layers)
    assert (
        spec.num_dense_layers + sum(kind.routed for kind in spec.layers) - both + mixing_only == spec.num_hidden_layers
    )


def test_names_are_one_model_s() -> None:
    specs = [load_model(name) for name in model_names()]
    names = [*model_names(), *(alias for spec in specs for alias in spec.aliases)]
    assert len({name.lower() for name in names}) == len(names)
    assert all(alias == alias.lower() for alias in names if "/" not in alias)
    nowhere = ["gpt3-1.3b", "gpt3-13b", "gpt3-175b", "gpt3-6.7b", "nemotron-4-15b", "opt-175b"]
    assert [spec.name for spec in specs if not any("/" in alias for alias in spec.aliases)] == nowhere


def test_with_layers_truncates() -> None:
    spec = load_model("deepseek-v3").with_layers(2)
    assert (spec.num_hidden_layers, spec.num_dense_layers, sum(kind.routed for kind in spec.layers)) == (2, 2, 0)
    longer = load_model("llama3-8b").with_layers(64)
    assert total_parameters(longer) > total_parameters(load_model("llama3-8b"))
    with pytest.raises(SimulateError, match="num_hidden_layers"):
        spec.with_layers(0)


def test_widths_of_latent_attention() -> None:
    spec = load_model("deepseek-v3")
    assert (spec.query_width, spec.value_width) == (128 * 192, 128 * 128)
    weights = weights_of(layer_operations(Conditions(spec), spec.layer_kinds[-1]))
    splits = {weight.name: weight.split for weight in weights}
    assert {splits[name] for name in ("q_a", "kv_a", "q_a_norm", "router", "input_norm")} == {"replicated"}
    assert {splits[name] for name in ("q_b", "kv_b", "shared_gate", "shared_up")} == {"column"}
    assert {splits[name] for name in ("o", "shared_down")} == {"row"}
    assert (splits["expert_gate"], splits["expert_down"]) == ("expert_column", "expert_row")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads 32 must be a multiple of num_key_value_heads 3"),
        ({"hidden_size": 0}, "hidden_size: '0': input should be greater than or equal to 1"),
        ({"hidden_size": "4096"}, "hidden_size: '4096': input should be a valid integer"),
        ({"hidden_size": 4096.0}, "hidden_size: '4096.0': input should be a valid integer"),
        (
            {"hidden_size": 2**32},
            "hidden_size: '4294967296': input should be less than or equal to 2147483648",
        ),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers: '10001'"),
        ({"hidden_sizes": 1}, "hidden_sizes: unknown key, did you mean 'hidden_size'?"),
        ({"architecture": "lama"}, "architecture: 'lama' is not a family that is priced, did you mean 'llama'?"),
        ({"kv_lora_rank": 512}, "kv_lora_rank is for attention 'mla' only"),
        ({"attention": "mla"}, "attention 'mla' needs kv_lora_rank"),
        ({"num_experts": 8}, "num_experts 8 needs num_experts_per_tok of at least 1"),
        ({"num_experts_per_tok": 8}, "num_experts_per_tok needs num_experts of at least 1"),
        (
            {"num_experts": 8, "num_experts_per_tok": 9, "moe_intermediate_size": 1},
            "num_experts_per_tok 9 exceeds num_experts 8",
        ),
        (
            {
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 1,
                "first_k_dense_replace": 33,
            },
            "first_k_dense_replace 33 exceeds num_hidden_layers 32",
        ),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: '1': input should be a valid boolean"),
        ({"sources": {}}, "provenance.source: 'primus' is not a key of sources; defined: none"),
        ({"name": "../x"}, "name: '../x'"),
    ],
)
def test_a_wrong_shape_is_one_line(changes: dict[str, object], message: str) -> None:
    values = asdict(load_model("llama3.1-8b")) | changes
    with pytest.raises(InputError) as caught:
        validated("own.yaml", ModelSpec, values)
    assert str(caught.value).startswith("own.yaml: ")
    assert message in str(caught.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match=r"^own.yaml: 10 problems: name: is missing; architecture: is missing; "):
        validated("own.yaml", ModelSpec, {})
